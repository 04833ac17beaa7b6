// Command protogen generates the Go code of the Protobuf messages, beside their .proto files. It needs Go alone: it
// compiles the files itself and hands the descriptors to protoc-gen-go and protoc-gen-go-vtproto, which it builds from this module's pins.
//
//	go run ./protogen ROOT FILE.proto…    (from infra/tools)
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: protogen ROOT FILE.proto…")
		os.Exit(2)
	}
	if err := generate(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "protogen:", err)
		os.Exit(1)
	}
}

func generate(root string, files []string) error {
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{root}}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	linked, err := compiler.Compile(context.Background(), files...)
	if err != nil {
		return err
	}
	req := &pluginpb.CodeGeneratorRequest{FileToGenerate: files}
	for _, f := range linked {
		var d *descriptorpb.FileDescriptorProto = protodesc.ToFileDescriptorProto(f)
		req.ProtoFile = append(req.ProtoFile, d)
	}
	return errors.Join(
		plugin(root, "google.golang.org/protobuf/cmd/protoc-gen-go", "", req),
		plugin(root, "github.com/planetscale/vtprotobuf/cmd/protoc-gen-go-vtproto", ",features=marshal+unmarshal+size", req),
	)
}

// plugin writes the files that a plugin generates.
func plugin(root, name, parameters string, req *pluginpb.CodeGeneratorRequest) error {
	req.Parameter = proto.String("paths=source_relative" + parameters)
	in, err := proto.Marshal(req)
	if err != nil {
		return err
	}
	cmd := exec.Command("go", "run", name)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(in), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	var resp pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(out, &resp); err != nil {
		return err
	}
	if resp.Error != nil {
		return fmt.Errorf("%s: %s", name, resp.GetError())
	}
	for _, f := range resp.File {
		if err := os.WriteFile(filepath.Join(root, f.GetName()), []byte(f.GetContent()), 0o644); err != nil {
			return err
		}
	}
	return nil
}
