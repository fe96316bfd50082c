//! Runs a model with one float input on the tracea-onnx provider from Rust, through ONNX Runtime's C
//! API, without crates. A program that uses the crate `ort` or bindings of the C header calls the
//! same functions by name; here they are looked up by their slots.
//!
//!     rustc -O main.rs -o run && ./run LIBONNXRUNTIME LIBTRACEA_ONNX MODEL.onnx MODEL.pack|"" [SIZE]
//!
//! The input is filled with a fixed pattern; the output is printed as: name, shape, sum, first
//! values. The last line has the provider's counters.
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::ptr::{null, null_mut};

type Pointer = *mut c_void;
extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> Pointer;
    fn dlsym(library: Pointer, name: *const c_char) -> Pointer;
}

#[repr(C)]
struct ApiBase {
    get_api: extern "C" fn(u32) -> *const Pointer,
    version: extern "C" fn() -> *const c_char,
}

fn fail(what: &str) -> ! {
    eprintln!("{what}");
    std::process::exit(1)
}
fn text(pointer: *const c_char) -> String {
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}
fn c(text: &str) -> CString {
    CString::new(text).unwrap_or_else(|_| fail("an argument has a null"))
}
fn symbol(library: &str, name: &str) -> Pointer {
    let found = unsafe {
        let loaded = dlopen(c(library).as_ptr(), 2 /* RTLD_NOW */);
        if loaded.is_null() { null_mut() } else { dlsym(loaded, c(name).as_ptr()) }
    };
    if found.is_null() { fail(&format!("{library} has no {name}")) } else { found }
}

/// A function of the table, with the types of its arguments; what it returns is a status.
macro_rules! ort {
    ($api:expr, $slot:expr $(, $value:expr => $kind:ty)*) => {{
        let function: extern "C" fn($($kind),*) -> Pointer =
            unsafe { std::mem::transmute(*$api.add($slot)) };
        check($api, function($($value),*))
    }};
}
fn check(api: *const Pointer, status: Pointer) {
    if !status.is_null() {
        let message: extern "C" fn(Pointer) -> *const c_char =
            unsafe { std::mem::transmute(*api.add(2)) };
        fail(&text(message(status)))
    }
}

fn main() {
    let given: Vec<String> = std::env::args().collect();
    if given.len() < 5 {
        fail("usage: run RUNTIME PROVIDER MODEL PACK [SIZE]")
    }
    let size: i64 = given.get(5).and_then(|s| s.parse().ok()).unwrap_or(1);
    let base: extern "C" fn() -> *const ApiBase =
        unsafe { std::mem::transmute(symbol(&given[1], "OrtGetApiBase")) };
    let base = unsafe { &*base() };
    let api = (base.get_api)(24);
    if api.is_null() {
        fail(&format!("ONNX Runtime {} is older than 1.24", text((base.version)())))
    }

    let (name, library, model, pack) = (c("tracea"), c(&given[2]), c(&given[3]), c(&given[4]));
    let mut env: Pointer = null_mut();
    ort!(api, 3 /* CreateEnv */, 2 => c_int, name.as_ptr() => *const c_char,
         &mut env => *mut Pointer);
    ort!(api, 301 /* RegisterExecutionProviderLibrary */, env => Pointer,
         name.as_ptr() => *const c_char, library.as_ptr() => *const c_char);
    let (mut devices, mut count): (*const Pointer, usize) = (null(), 0);
    ort!(api, 303 /* GetEpDevices */, env => Pointer, &mut devices => *mut *const Pointer,
         &mut count => *mut usize);
    let provider: extern "C" fn(Pointer) -> *const c_char =
        unsafe { std::mem::transmute(*api.add(312 /* EpDevice_EpName */)) };
    let device = *unsafe { std::slice::from_raw_parts(devices, count) }
        .iter()
        .find(|d| text(provider(**d)) == "TraceaExecutionProvider")
        .unwrap_or_else(|| fail("the provider offers no device"));

    let (mut options, mut session): (Pointer, Pointer) = (null_mut(), null_mut());
    let (key, value) = (c("kernel_pack"), pack.as_ptr());
    ort!(api, 10 /* CreateSessionOptions */, &mut options => *mut Pointer);
    ort!(api, 304 /* SessionOptionsAppendExecutionProvider_V2 */, options => Pointer,
         env => Pointer, &device => *const Pointer, 1 => usize, &key.as_ptr() => *const *const c_char,
         &value => *const *const c_char, usize::from(!given[4].is_empty()) => usize);
    ort!(api, 7 /* CreateSession */, env => Pointer, model.as_ptr() => *const c_char,
         options => Pointer, &mut session => *mut Pointer);

    let (mut allocator, mut memory): (Pointer, Pointer) = (null_mut(), null_mut());
    let (mut input_name, mut output_name): (*const c_char, *const c_char) = (null(), null());
    ort!(api, 78 /* GetAllocatorWithDefaultOptions */, &mut allocator => *mut Pointer);
    ort!(api, 69 /* CreateCpuMemoryInfo */, 0 => c_int, 0 => c_int, &mut memory => *mut Pointer);
    ort!(api, 36 /* SessionGetInputName */, session => Pointer, 0 => usize, allocator => Pointer,
         &mut input_name => *mut *const c_char);
    ort!(api, 37 /* SessionGetOutputName */, session => Pointer, 0 => usize, allocator => Pointer,
         &mut output_name => *mut *const c_char);
    let (mut kind, mut tensor, mut element, mut rank): (Pointer, Pointer, c_int, usize) =
        (null_mut(), null_mut(), 0, 0);
    ort!(api, 33 /* SessionGetInputTypeInfo */, session => Pointer, 0 => usize,
         &mut kind => *mut Pointer);
    ort!(api, 55 /* CastTypeInfoToTensorInfo */, kind => Pointer, &mut tensor => *mut Pointer);
    ort!(api, 60 /* GetTensorElementType */, tensor => Pointer, &mut element => *mut c_int);
    ort!(api, 61 /* GetDimensionsCount */, tensor => Pointer, &mut rank => *mut usize);
    if element != 1 {
        fail("the model's input is not one of floats")
    }
    let mut dims = vec![0i64; rank];
    ort!(api, 62 /* GetDimensions */, tensor => Pointer, dims.as_mut_ptr() => *mut i64,
         rank => usize);
    for d in &mut dims {
        *d = if *d < 0 { size } else { *d };
    }

    let count = dims.iter().product::<i64>() as usize;
    let mut data: Vec<f32> = (0..count).map(|k| (k * 7919 % 1000) as f32 / 1000.0 - 0.5).collect();
    let (mut input, mut output): (Pointer, Pointer) = (null_mut(), null_mut());
    ort!(api, 49 /* CreateTensorWithDataAsOrtValue */, memory => Pointer,
         data.as_mut_ptr() => *mut f32, 4 * count => usize, dims.as_ptr() => *const i64,
         rank => usize, 1 => c_int, &mut input => *mut Pointer);
    ort!(api, 9 /* Run */, session => Pointer, null_mut() => Pointer,
         &input_name => *const *const c_char, &input => *const Pointer, 1 => usize,
         &output_name => *const *const c_char, 1 => usize, &mut output => *mut Pointer);
    let (mut shape, mut values): (*const i64, *const f32) = (null(), null());
    ort!(api, 414 /* GetTensorElementTypeAndShapeDataReference */, output => Pointer,
         &mut element => *mut c_int, &mut shape => *mut *const i64, &mut rank => *mut usize);
    ort!(api, 51 /* GetTensorMutableData */, output => Pointer, &mut values => *mut *const f32);
    let shape = unsafe { std::slice::from_raw_parts(shape, rank) };
    let values =
        unsafe { std::slice::from_raw_parts(values, shape.iter().product::<i64>() as usize) };
    let sum: f64 = values.iter().map(|v| f64::from(*v)).sum();
    let listed: Vec<String> = shape.iter().map(i64::to_string).collect();
    print!("{} [{}] {sum}", text(output_name), listed.join(","));
    for v in values.iter().take(8) {
        print!(" {v}");
    }

    let counters: extern "C" fn(*mut c_char, usize) -> c_int =
        unsafe { std::mem::transmute(symbol(&given[2], "tracea_stats")) };
    let mut line = [0 as c_char; 2048];
    counters(line.as_mut_ptr(), line.len());
    println!("\n{}", text(line.as_ptr()));

    for (slot, what) in [(96, input), (96, output), (98, kind), (94, memory), (95, session),
        (100, options)] {
        let release: extern "C" fn(Pointer) = unsafe { std::mem::transmute(*api.add(slot)) };
        release(what);
    }
    for name in [input_name, output_name] {
        ort!(api, 76 /* AllocatorFree */, allocator => Pointer, name => *const c_char);
    }
    ort!(api, 302 /* UnregisterExecutionProviderLibrary */, env => Pointer,
         name.as_ptr() => *const c_char);
    let release: extern "C" fn(Pointer) = unsafe { std::mem::transmute(*api.add(92)) };
    release(env);
}
