package proto

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nomad-lite/nomad-lite/hclspec/specpb"
	"github.com/nomad-lite/nomad-lite/plugins/proto/basepb"
	"github.com/nomad-lite/nomad-lite/plugins/proto/devicepb"
	"github.com/nomad-lite/nomad-lite/plugins/proto/driverpb"
	"github.com/nomad-lite/nomad-lite/plugins/proto/structspb"
)

// protocolFiles are the files of Nomad's plugin protocol, with the names that docs/reference/driver-protocol.md has for them.
var protocolFiles = map[string][]protoreflect.FileDescriptor{
	"base":    {basepb.File_plugins_proto_basepb_base_proto},
	"device":  {devicepb.File_plugins_proto_devicepb_device_proto},
	"drivers": {driverpb.File_plugins_proto_driverpb_driver_proto},
	"hclspec": {specpb.File_hclspec_specpb_hcl_spec_proto},
	"structs": {structspb.File_plugins_proto_structspb_attribute_proto, structspb.File_plugins_proto_structspb_recoverable_error_proto, structspb.File_plugins_proto_structspb_stats_proto},
}

// Each field of the protocol has a row in docs/reference/driver-protocol.md, with the tests in which a program of other authors shows
// the field. Host and SDK share the .proto files, so no test with only our programs finds a wrong number.
func TestEachFieldHasARow(t *testing.T) {
	const document = "../../docs/reference/driver-protocol.md"
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z]+\\.[A-Za-z.]+\\.\\w+)` \\|").FindAllStringSubmatch(string(text), -1) {
		if rows[row[1]] {
			t.Errorf("%s has two rows for %s", document, row[1])
		}
		rows[row[1]] = true
	}
	for name, files := range protocolFiles {
		for _, file := range files {
			for _, field := range fieldsOf(name, file.Messages()) {
				if !rows[field] {
					t.Errorf("%s has no row for %s: let a test of cmd/nomad-lite/peertest show the field on the other side, and add a row", document, field)
				}
				delete(rows, field)
			}
		}
	}
	for field := range rows {
		t.Errorf("%s has a row for %s, which is no field of the protocol", document, field)
	}
}

// fieldsOf returns the names of the fields of messages: prefix, message and field, with dots.
func fieldsOf(prefix string, messages protoreflect.MessageDescriptors) []string {
	var names []string
	for i := range messages.Len() {
		message := messages.Get(i)
		if message.IsMapEntry() {
			continue
		}
		name := strings.Join([]string{prefix, string(message.Name())}, ".")
		for j := range message.Fields().Len() {
			names = append(names, name+"."+string(message.Fields().Get(j).Name()))
		}
		names = append(names, fieldsOf(name, message.Messages())...)
	}
	return names
}
