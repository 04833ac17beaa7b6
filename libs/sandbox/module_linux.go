//go:build amd64 || arm64

package sandbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"
	"github.com/tetratelabs/wazero/sys"
)

// trapped is the exit code of a module that did what it must not, as a shell shows a program that aborted.
const trapped = 134

// page is the unit of a module's memory in bytes.
const page = 64 << 10

// runModule runs a module in this process.
func runModule(r *wasmRequest, from io.Reader) wasmReport {
	code, err := io.ReadAll(io.LimitReader(from, MaxCode+1))
	if err != nil {
		return wasmReport{Refused: err.Error()}
	}
	debug.SetMemoryLimit(r.Memory + overhead/2) // the memory of the module is one of this process
	ctx := context.Background()
	machine := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfig().WithMemoryLimitPages(uint32(min(r.Memory/page, 65536))).
		WithMemoryCapacityFromMax(true)) // it grows where it is: as a copy it would be there twice
	if _, err := wasi_snapshot_preview1.Instantiate(ctx, machine); err != nil {
		return wasmReport{Refused: err.Error()}
	}
	compiled, err := machine.CompileModule(ctx, code)
	if err != nil {
		return wasmReport{Refused: fmt.Sprintf("the module is not one of WebAssembly, or asks for more memory than its limit: %v", err)}
	}
	config := wazero.NewModuleConfig().WithStdin(os.Stdin).WithStdout(os.Stdout).WithStderr(os.Stderr).WithArgs(append([]string{"module"}, r.Args...)...).
		WithSysWalltime().WithSysNanotime().WithSysNanosleep().WithRandSource(rand.Reader)
	for name, value := range r.Env {
		config = config.WithEnv(name, value)
	}
	_, err = machine.InstantiateModule(ctx, compiled, config)
	var exit *sys.ExitError
	switch {
	case err == nil:
		return wasmReport{}
	case errors.As(err, &exit):
		return wasmReport{ExitCode: int(exit.ExitCode())}
	}
	// A trap, such as a read beyond its memory, or an import that is not there.
	fmt.Fprintln(os.Stderr, err)
	return wasmReport{ExitCode: trapped}
}
