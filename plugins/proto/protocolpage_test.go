package proto

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/docpage"
)

// docs/reference/plugin-protocols.md is the .proto files with their comments.
func TestReferenceProtocolPage(t *testing.T) {
	p := &protocolPage{comments: map[protoreflect.FullName]string{}}
	files := protocolDescriptors()
	slices.SortFunc(files, func(a, b protoreflect.FileDescriptor) int { return strings.Compare(a.Path(), b.Path()) })
	for _, file := range files {
		source, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(file.Path())))
		if err != nil {
			t.Fatal(err)
		}
		p.readComments(file.Package(), string(source))
	}
	if len(p.comments) < 100 {
		t.Errorf("found %d comments in the .proto files", len(p.comments))
	}
	p.text.WriteString("# Plugin protocols\n\n" +
		"This page is generated from the `.proto` files with their comments (`make reference`). It is for authors of plugins in other languages than Go; the Go packages for authors are\n" +
		"`sdk` and `plugins/driver`, `plugins/hook` and `plugins/device`, which `go doc` describes. Each plugin also serves `BasePlugin`, and starts with the handshake of [go-plugin](https://github.com/hashicorp/go-plugin).\n" +
		"[The plugin protocol, and the tests of each field](driver-protocol.md) names the tests in which programs of other authors speak the protocols of drivers and devices.\n")
	for _, file := range files {
		p.addFile(file)
	}
	docpage.Check(t, "reference/plugin-protocols.md", p.text.String())
}

type protocolPage struct {
	comments map[protoreflect.FullName]string
	text     strings.Builder
}

// protoBlock matches the first line of a block in a .proto file, and protoElement a field, a value or a method.
var (
	protoBlock   = regexp.MustCompile(`^(message|enum|service|oneof) (\w+) \{`)
	protoElement = regexp.MustCompile(`^(?:rpc (\w+)|(?:[\w.<>, ]+ )?(\w+) = \d+)`)
)

// readComments stores the comments above each declaration, and in its line.
func (p *protocolPage) readComments(pkg protoreflect.FullName, source string) {
	scope := []protoreflect.FullName{pkg}
	var above []string
	for line := range strings.Lines(source) {
		line = strings.TrimSpace(line)
		if comment, ok := strings.CutPrefix(line, "//"); ok {
			above = append(above, strings.TrimSpace(comment))
			continue
		}
		code, behind, _ := strings.Cut(line, "//")
		store := func(name string) {
			full := scope[len(scope)-1].Append(protoreflect.Name(name))
			if comment := strings.TrimSpace(strings.Join(append(above, strings.TrimSpace(behind)), " ")); comment != "" {
				p.comments[full] = comment
			}
		}
		block, element := protoBlock.FindStringSubmatch(code), protoElement.FindStringSubmatch(code)
		switch {
		case block != nil && strings.Contains(code, "}"):
			store(block[2])
		case block != nil && block[1] == "oneof":
			scope = append(scope, scope[len(scope)-1]) // the fields of a oneof are those of the message
		case block != nil:
			store(block[2])
			name := scope[len(scope)-1].Append(protoreflect.Name(block[2]))
			scope = append(scope, name)
		case element != nil:
			store(element[1] + element[2])
		case strings.HasPrefix(code, "}"):
			scope = scope[:len(scope)-1]
		case strings.HasPrefix(code, "package ") && len(above) > 0:
			p.comments[pkg] = strings.Join(above, " ")
		}
		above = nil
	}
}

func (p *protocolPage) addFile(file protoreflect.FileDescriptor) {
	fmt.Fprintf(&p.text, "\n## %s\n\n", file.Path())
	if comment := p.comments[file.Package()]; comment != "" {
		p.text.WriteString(comment + "\n\n")
	}
	fmt.Fprintf(&p.text, "Package %s\n", docpage.Code(string(file.Package())))
	for i := range file.Services().Len() {
		service := file.Services().Get(i)
		calls := docpage.NewTable("Call", "Request", "Response", "Comment")
		for j := range service.Methods().Len() {
			m := service.Methods().Get(j)
			calls.AddRow(docpage.Code(string(m.Name())), p.callType(m.IsStreamingClient(), m.Input()), p.callType(m.IsStreamingServer(), m.Output()), p.comments[m.FullName()])
		}
		p.addSection("Service", service, calls)
	}
	p.addMessages(file.Messages())
	p.addEnums(file.Enums())
}

func (p *protocolPage) callType(isStream bool, message protoreflect.MessageDescriptor) string {
	if isStream {
		return "stream of " + docpage.Code(string(message.Name()))
	}
	return docpage.Code(string(message.Name()))
}

func (p *protocolPage) addSection(kind string, d protoreflect.Descriptor, table *docpage.Table) {
	name := strings.TrimPrefix(string(d.FullName()), string(d.ParentFile().Package())+".")
	fmt.Fprintf(&p.text, "\n### %s %s\n", kind, name)
	if comment := p.comments[d.FullName()]; comment != "" {
		fmt.Fprintf(&p.text, "\n%s\n", comment)
	}
	if rows := table.String(); rows != "" {
		fmt.Fprintf(&p.text, "\n%s", rows)
	}
}

func (p *protocolPage) addMessages(messages protoreflect.MessageDescriptors) {
	for i := range messages.Len() {
		message := messages.Get(i)
		if message.IsMapEntry() {
			continue
		}
		fields := docpage.NewTable("Field", "Number", "Type", "Comment")
		for j := range message.Fields().Len() {
			f := message.Fields().Get(j)
			comment := p.comments[f.FullName()]
			if oneof := f.ContainingOneof(); oneof != nil && !oneof.IsSynthetic() {
				comment = strings.TrimSpace("One of " + string(oneof.Name()) + ". " + comment)
			}
			fields.AddRow(docpage.Code(string(f.Name())), strconv.Itoa(int(f.Number())), docpage.Code(typeText(f)), comment)
		}
		p.addSection("Message", message, fields)
		p.addMessages(message.Messages())
		p.addEnums(message.Enums())
	}
}

func (p *protocolPage) addEnums(enums protoreflect.EnumDescriptors) {
	for i := range enums.Len() {
		enum := enums.Get(i)
		values := docpage.NewTable("Value", "Number", "Comment")
		for j := range enum.Values().Len() {
			v := enum.Values().Get(j)
			name := enum.FullName().Append(v.Name()) // the full name of a value is in the scope of its enumeration
			values.AddRow(docpage.Code(string(v.Name())), strconv.Itoa(int(v.Number())), p.comments[name])
		}
		p.addSection("Enumeration", enum, values)
	}
}
