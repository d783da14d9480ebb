// The other side of proto/tests/round_trip.rs: CRI v1 through the Kubernetes API's own Go types.
//
//	describe   the file descriptor, then each gRPC service's methods
//	encode     every message with every field set, deterministically marshalled
//	recode     reads what `encode` would write; decodes, checks, marshals again
//
// Input and output are pairs of a name and bytes, each behind its length (32 bits, big endian).
package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var file = cri.File_staging_src_k8s_io_cri_api_pkg_apis_runtime_v1_api_proto

var marshal = proto.MarshalOptions{Deterministic: true}

func main() {
	out := bufio.NewWriter(os.Stdout)
	err := run(os.Args[1:], bufio.NewReader(os.Stdin), out)
	if err == nil {
		err = out.Flush()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(args []string, in io.Reader, out io.Writer) error {
	if len(args) != 1 {
		return errors.New("usage: proto describe|encode|recode")
	}
	switch args[0] {
	case "describe":
		return describe(out)
	case "encode":
		return encode(out)
	case "recode":
		return recode(in, out)
	default:
		return fmt.Errorf("unknown command %q", args[0])
	}
}

func describe(out io.Writer) error {
	descriptor, err := marshal.Marshal(protodesc.ToFileDescriptorProto(file))
	if err != nil {
		return err
	}
	if err := writePair(out, "file", descriptor); err != nil {
		return err
	}
	for _, service := range []grpc.ServiceDesc{cri.RuntimeService_ServiceDesc, cri.ImageService_ServiceDesc} {
		var methods []string
		for _, method := range service.Methods {
			methods = append(methods, method.MethodName)
		}
		for _, stream := range service.Streams {
			if !stream.ServerStreams || stream.ClientStreams {
				return fmt.Errorf("%s: a stream of another kind than the server's", stream.StreamName)
			}
			methods = append(methods, "stream "+stream.StreamName)
		}
		if err := writePair(out, service.ServiceName, []byte(strings.Join(methods, "\n"))); err != nil {
			return err
		}
	}
	return nil
}

func encode(out io.Writer) error {
	messages := file.Messages()
	for i := range messages.Len() {
		message, err := newMessage(messages.Get(i).FullName())
		if err != nil {
			return err
		}
		if err := fill(message, 0); err != nil {
			return err
		}
		bytes, err := marshal.Marshal(message.Interface())
		if err != nil {
			return err
		}
		if err := writePair(out, string(message.Descriptor().FullName()), bytes); err != nil {
			return err
		}
	}
	return nil
}

func recode(in io.Reader, out io.Writer) error {
	for {
		name, bytes, err := readPair(in)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		message, err := newMessage(protoreflect.FullName(name))
		if err != nil {
			return err
		}
		if err := proto.Unmarshal(bytes, message.Interface()); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := whole(message, name); err != nil {
			return err
		}
		again, err := marshal.Marshal(message.Interface())
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := writePair(out, name, again); err != nil {
			return err
		}
	}
}

func newMessage(name protoreflect.FullName) (protoreflect.Message, error) {
	kind, err := protoregistry.GlobalTypes.FindMessageByName(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return kind.New(), nil
}

func writePair(out io.Writer, name string, bytes []byte) error {
	for _, part := range [][]byte{[]byte(name), bytes} {
		if err := binary.Write(out, binary.BigEndian, uint32(len(part))); err != nil {
			return err
		}
		if _, err := out.Write(part); err != nil {
			return err
		}
	}
	return nil
}

// io.EOF only between pairs; within one it is an io.ErrUnexpectedEOF.
func readPair(in io.Reader) (string, []byte, error) {
	name, err := readPart(in)
	if err != nil {
		return "", nil, err
	}
	bytes, err := readPart(in)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return string(name), bytes, err
}

func readPart(in io.Reader) ([]byte, error) {
	var size uint32
	if err := binary.Read(in, binary.BigEndian, &size); err != nil {
		return nil, err
	}
	if size > 1<<26 {
		return nil, fmt.Errorf("a part of %d bytes", size)
	}
	part := make([]byte, size)
	if _, err := io.ReadFull(in, part); err != nil {
		return nil, io.ErrUnexpectedEOF
	}
	return part, nil
}
