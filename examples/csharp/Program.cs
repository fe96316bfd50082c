// Runs a model with one float input on the tracea-onnx provider from C# (NuGet package
// Microsoft.ML.OnnxRuntime 1.24 or newer). It was not run: the project's machines have no .NET.
//
//   dotnet run LIBTRACEA_ONNX MODEL.onnx [MODEL.pack]
using System;
using System.Collections.Generic;
using System.Linq;
using Microsoft.ML.OnnxRuntime;

var environment = OrtEnv.Instance();
environment.RegisterExecutionProviderLibrary("tracea", args[0]);
var device = environment.GetEpDevices().First(d => d.EpName == "TraceaExecutionProvider");

using var options = new SessionOptions();
var given = new Dictionary<string, string>();
if (args.Length > 2) given["kernel_pack"] = args[2];
options.AppendExecutionProvider(environment, new[] { device }, given);

using (var session = new InferenceSession(args[1], options))
{
    var (name, type) = session.InputMetadata.First();
    var shape = type.Dimensions.Select(d => (long)Math.Max(d, 1)).ToArray();
    var data = Enumerable.Range(0, (int)shape.Aggregate(1L, (a, b) => a * b))
        .Select(k => k * 7919L % 1000 / 1000f - 0.5f).ToArray();
    using var input = OrtValue.CreateTensorValueFromMemory(data, shape);
    using var run = new RunOptions();
    var inputs = new Dictionary<string, OrtValue> { [name] = input };
    using var results = session.Run(run, inputs, session.OutputNames);
    Console.WriteLine($"{session.OutputNames[0]} {results[0].GetTensorDataAsSpan<float>()[0]}");
}
environment.UnregisterExecutionProviderLibrary("tracea");
