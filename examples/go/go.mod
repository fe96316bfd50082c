module tracea-onnx-example

go 1.19
