package main

import (
	"fmt"
	"io"
	"regexp"
	"sort"
	"strings"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// transcript is what the tour prints: a heading for each command, then a line for each field of the
// answer, by its path.
type transcript struct {
	out   io.Writer
	names [][2]string
}

func newTranscript(out io.Writer) *transcript { return &transcript{out: out} }

// name gives a text of this run a placeholder.
func (s *transcript) name(text, placeholder string) {
	if text != "" {
		s.names = append(s.names, [2]string{text, placeholder})
		// Longer ones may hold shorter ones.
		sort.SliceStable(s.names, func(i, j int) bool { return len(s.names[i][0]) > len(s.names[j][0]) })
	}
}

// step begins a command.
func (s *transcript) step(command string) { fmt.Fprintf(s.out, "$ %s\n", s.plain(command)) }

// say prints a line.
func (s *transcript) say(format string, args ...any) {
	fmt.Fprintf(s.out, "  %s\n", s.plain(fmt.Sprintf(format, args...)))
}

// refused prints the code of an error: its words are each runtime's own.
func (s *transcript) refused(err error) {
	if err == nil {
		s.say("accepted")
		return
	}
	s.say("refused: %s", status.Code(err))
}

var digests = regexp.MustCompile(`sha256:[0-9a-f]{64}`)
var ids = regexp.MustCompile(`\b[0-9a-f]{64}\b`)
var addresses = regexp.MustCompile(`\b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b(:\d+)?`)

// plain puts placeholders in the place of what is this run's own.
func (s *transcript) plain(text string) string {
	for _, pair := range s.names {
		text = strings.ReplaceAll(text, pair[0], pair[1])
	}
	text = digests.ReplaceAllString(text, "<digest>")
	text = ids.ReplaceAllString(text, "<id>")
	return addresses.ReplaceAllString(text, "<address>")
}

// show prints every field that is set.
func (s *transcript) show(path string, message proto.Message) {
	if message == nil || !message.ProtoReflect().IsValid() {
		s.say("%s: nothing", path)
		return
	}
	s.walk(path, message.ProtoReflect())
}

func (s *transcript) walk(path string, message protoreflect.Message) {
	fields := message.Descriptor().Fields()
	set := 0
	for i := range fields.Len() {
		field := fields.Get(i)
		if !message.Has(field) {
			continue
		}
		set++
		value, at := message.Get(field), path+"."+string(field.Name())
		switch {
		case field.IsMap():
			s.entries(at, field, value.Map())
		case field.IsList():
			for j := range value.List().Len() {
				s.value(fmt.Sprintf("%s[%d]", at, j), field, value.List().Get(j))
			}
		default:
			s.value(at, field, value)
		}
	}
	if set == 0 {
		s.say("%s: {}", path)
	}
}

func (s *transcript) entries(path string, field protoreflect.FieldDescriptor, entries protoreflect.Map) {
	var keys []string
	entries.Range(func(key protoreflect.MapKey, _ protoreflect.Value) bool {
		keys = append(keys, key.String())
		return true
	})
	sort.Strings(keys)
	for _, key := range keys {
		at := fmt.Sprintf("%s[%s]", path, key)
		if field.Name() == "info" {
			// JSON of each runtime's own.
			s.say("%s: <json>", at)
			continue
		}
		s.value(at, field.MapValue(), entries.Get(protoreflect.ValueOfString(key).MapKey()))
	}
}

// figures are fields that no two runs have alike.
var figures = map[protoreflect.Name]string{
	"created_at": "<time>", "started_at": "<time>", "finished_at": "<time>", "timestamp": "<time>",
	"size": "<figure>", "Total": "<figure>", "Avg10": "<figure>", "Avg60": "<figure>", "Avg300": "<figure>",
	"mountpoint": "<path>", "runtime_version": "<version>",
}

func (s *transcript) value(path string, field protoreflect.FieldDescriptor, value protoreflect.Value) {
	if field.Kind() == protoreflect.MessageKind {
		if message := value.Message(); message.Descriptor().Name() != "UInt64Value" {
			s.walk(path, message)
		} else {
			s.say("%s: <figure>", path)
		}
		return
	}
	if placeholder, is := figures[field.Name()]; is {
		s.say("%s: %s", path, placeholder)
		return
	}
	switch field.Kind() {
	case protoreflect.EnumKind:
		s.say("%s: %s", path, field.Enum().Values().ByNumber(value.Enum()).Name())
	case protoreflect.StringKind, protoreflect.BytesKind:
		s.say("%s: %q", path, value.String())
	default:
		s.say("%s: %v", path, value.Interface())
	}
}
