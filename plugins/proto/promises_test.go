package proto

import (
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/promises"
	"github.com/nomad-lite/nomad-lite/plugins/proto/hookpb"
	"github.com/nomad-lite/nomad-lite/plugins/proto/taskspb"
)

const promisesFile = "plugin-protocol.txt"

// protocolDescriptors returns the files of the plugin protocols: those of Nomad, and ours, which are those of hooks and the
// service Tasks of drivers.
func protocolDescriptors() []protoreflect.FileDescriptor {
	files := []protoreflect.FileDescriptor{hookpb.File_plugins_proto_hookpb_hook_proto, hookpb.File_plugins_proto_hookpb_host_proto, taskspb.File_plugins_proto_taskspb_tasks_proto}
	for _, list := range protocolFiles {
		files = append(files, list...)
	}
	return files
}

// promiseLines returns a line for each method, field and value of an enumeration. The value of a line is what is on the wire and in the
// generated code.
func promiseLines(files []protoreflect.FileDescriptor) []string {
	var lines []string
	for _, file := range files {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				m := methods.Get(j)
				lines = append(lines, fmt.Sprintf("method %s: (%s) returns (%s)", m.FullName(), streamText(m.IsStreamingClient(), m.Input()), streamText(m.IsStreamingServer(), m.Output())))
			}
		}
		lines = appendEnums(lines, file.Enums())
		lines = appendMessages(lines, file.Messages())
	}
	return lines
}

func streamText(isStream bool, message protoreflect.MessageDescriptor) string {
	if isStream {
		return "stream " + string(message.FullName())
	}
	return string(message.FullName())
}

func appendMessages(lines []string, messages protoreflect.MessageDescriptors) []string {
	for i := range messages.Len() {
		message := messages.Get(i)
		if message.IsMapEntry() {
			continue
		}
		lines = append(lines, "message "+string(message.FullName()))
		for j := range message.Fields().Len() {
			f := message.Fields().Get(j)
			value := fmt.Sprintf("%d %s", f.Number(), typeText(f))
			if oneof := f.ContainingOneof(); oneof != nil && !oneof.IsSynthetic() {
				value += " in oneof " + string(oneof.Name())
			}
			lines = append(lines, fmt.Sprintf("field %s: %s", f.FullName(), value))
		}
		lines = appendEnums(lines, message.Enums())
		lines = appendMessages(lines, message.Messages())
	}
	return lines
}

func typeText(f protoreflect.FieldDescriptor) string {
	switch {
	case f.IsMap():
		return fmt.Sprintf("map<%s, %s>", typeText(f.MapKey()), typeText(f.MapValue()))
	case f.IsList():
		return "repeated " + elementText(f)
	case f.HasOptionalKeyword():
		return "optional " + elementText(f)
	}
	return elementText(f)
}

func elementText(f protoreflect.FieldDescriptor) string {
	switch {
	case f.Message() != nil:
		return string(f.Message().FullName())
	case f.Enum() != nil:
		return string(f.Enum().FullName())
	}
	return f.Kind().String()
}

func appendEnums(lines []string, enums protoreflect.EnumDescriptors) []string {
	for i := range enums.Len() {
		enum := enums.Get(i)
		for j := range enum.Values().Len() {
			v := enum.Values().Get(j)
			lines = append(lines, fmt.Sprintf("value %s.%s: %d", enum.FullName(), v.Name(), v.Number()))
		}
	}
	return lines
}

func TestReferenceProtocolPromises(t *testing.T) {
	promises.Check(t, promisesFile, promiseLines(protocolDescriptors()))
}

// A copy of hook.proto in which one declaration has changed breaks the promise of the declaration, and only this one.
func TestChangedProtocolBreaksPromises(t *testing.T) {
	const message, service = "nomadlite.plugins.hook.v1.PrestartResponse", "nomadlite.plugins.hook.v1.Hook"
	isDone := func(f *descriptorpb.FieldDescriptorProto) bool { return f.GetName() == "done" }
	for name, test := range map[string]struct {
		promise string
		edit    func(*descriptorpb.DescriptorProto, *descriptorpb.ServiceDescriptorProto)
	}{
		"removed field": {"field " + message + ".done", func(m *descriptorpb.DescriptorProto, _ *descriptorpb.ServiceDescriptorProto) {
			m.Field = slices.DeleteFunc(m.Field, isDone)
		}},
		"field with another number": {"field " + message + ".done", func(m *descriptorpb.DescriptorProto, _ *descriptorpb.ServiceDescriptorProto) {
			m.Field[slices.IndexFunc(m.Field, isDone)].Number = new(int32(99))
		}},
		"field with another type": {"field " + message + ".done", func(m *descriptorpb.DescriptorProto, _ *descriptorpb.ServiceDescriptorProto) {
			m.Field[slices.IndexFunc(m.Field, isDone)].Type = descriptorpb.FieldDescriptorProto_TYPE_STRING.Enum()
		}},
		"removed method": {"method " + service + ".Destroy", func(_ *descriptorpb.DescriptorProto, s *descriptorpb.ServiceDescriptorProto) {
			s.Method = slices.DeleteFunc(s.Method, func(m *descriptorpb.MethodDescriptorProto) bool { return m.GetName() == "Destroy" })
		}},
	} {
		t.Run(name, func(t *testing.T) {
			files := protocolDescriptors()
			file := protodesc.ToFileDescriptorProto(files[0])
			m := slices.IndexFunc(file.MessageType, func(m *descriptorpb.DescriptorProto) bool { return file.GetPackage()+"."+m.GetName() == message })
			s := slices.IndexFunc(file.Service, func(s *descriptorpb.ServiceDescriptorProto) bool { return file.GetPackage()+"."+s.GetName() == service })
			test.edit(file.MessageType[m], file.Service[s])
			changed, err := protodesc.NewFile(file, protoregistry.GlobalFiles)
			if err != nil {
				t.Fatal(err)
			}
			files[0] = changed
			promises.CheckOnly(t, promisesFile, promiseLines(files), test.promise)
		})
	}
}
