// Runs a model with one float input on the tracea-onnx provider from Go, through ONNX Runtime's C
// API (cgo).
//
//	go build && ./tracea-onnx-example LIBONNXRUNTIME LIBTRACEA_ONNX MODEL.onnx MODEL.pack|"" [SIZE]
//
// The input is filled with a fixed pattern; the output is printed as: name, shape, sum, first
// values. The last line has the provider's counters.
package main

/*
#cgo CFLAGS: -I${SRCDIR}/../c
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "provider.h"

static Provider *made(void) { return calloc(1, sizeof(Provider)); }
static void counters(const char *library, char *text, size_t size) {
  int (*stats)(char *, size_t);
  *(void **)&stats = dlsym(dlopen(library, RTLD_NOW), "tracea_stats");
  stats(text, size);
}
*/
import "C"

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"
)

func check(p *C.Provider, failed C.int) {
	if failed != 0 {
		fmt.Fprintln(os.Stderr, C.GoString(&p.error[0]))
		os.Exit(1)
	}
}

func main() {
	if len(os.Args) < 5 {
		fmt.Fprintln(os.Stderr, "usage: RUNTIME PROVIDER MODEL PACK [SIZE]")
		os.Exit(2)
	}
	size := int64(1)
	if len(os.Args) > 5 {
		size, _ = strconv.ParseInt(os.Args[5], 10, 64)
	}
	p := C.made()
	library := C.CString(os.Args[2])
	check(p, C.provider_open(p, C.CString(os.Args[1]), library, C.CString(os.Args[3]),
		C.CString(os.Args[4])))
	var dims [8]C.int64_t
	var rank C.size_t
	check(p, C.provider_input_dims(p, &dims[0], &rank))
	count := 1
	for k := range dims[:rank] {
		if dims[k] < 0 {
			dims[k] = C.int64_t(size)
		}
		count *= int(dims[k])
	}
	// What ONNX Runtime keeps is not Go's memory.
	data := (*C.float)(C.malloc(C.size_t(4 * (count + 1))))
	for k, values := 0, unsafe.Slice(data, count); k < count; k++ {
		values[k] = C.float(float32(k*7919%1000)/1000 - 0.5)
	}
	var result *C.float
	var shape *C.int64_t
	var shapeRank C.size_t
	check(p, C.provider_run(p, data, C.size_t(count), &dims[0], rank, &result, &shape, &shapeRank))
	n, text := 1, []string{}
	for _, d := range unsafe.Slice(shape, shapeRank) {
		n *= int(d)
		text = append(text, strconv.Itoa(int(d)))
	}
	sum := 0.0
	values := unsafe.Slice(result, n)
	for _, v := range values {
		sum += float64(v)
	}
	fmt.Printf("%s [%s] %.9g", C.GoString(p.output_name), strings.Join(text, ","), sum)
	for k := 0; k < n && k < 8; k++ {
		fmt.Printf(" %.9g", float64(values[k]))
	}
	counters := (*C.char)(C.calloc(1, 2048))
	C.counters(library, counters, 2048)
	fmt.Printf("\n%s\n", C.GoString(counters))
	C.provider_close(p)
}
