package store

import (
	"reflect"
	"slices"
	"strings"
	"time"
)

// storedField describes a field of a struct that is encoded in the state file.
type storedField struct {
	storedName string // name of the field in the file
	fieldIndex []int  // index of the field in the struct, for [reflect.Value.FieldByIndexErr]
	goType     reflect.Type
	isSecret   bool
}

// storedFields returns the encoded fields of a struct type. The name of a field in the file is the name in its tag
// "store", or without a tag its Go name. The fields of an embedded struct count as fields of the struct.
func storedFields(t reflect.Type) []storedField {
	var fields []storedField
	for _, f := range reflect.VisibleFields(t) {
		name, options, _ := strings.Cut(f.Tag.Get("store"), ",")
		if !f.IsExported() || name == "-" || f.Anonymous && name == "" && isNonTimeStructOrPointerToIt(f.Type) {
			continue
		}
		if name == "" {
			name = f.Name
		}
		fields = append(fields, storedField{
			storedName: name, fieldIndex: f.Index, goType: f.Type,
			isSecret: slices.Contains(strings.Split(options, ","), "secret") || secretAPIFields[t.String()+"."+name],
		})
	}
	return fields
}

func isNonTimeStructOrPointerToIt(t reflect.Type) bool {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Kind() == reflect.Struct && t != reflect.TypeFor[time.Time]()
}

// secretAPIFields are the fields of the types of the Nomad API that hold or may hold secrets: the environment, the
// items and lock of a variable, and texts of jobs and templates. Fields of other types have the option "secret" in their tag.
var secretAPIFields = map[string]bool{
	"api.Task.Env": true, "api.SidecarTask.Env": true, "api.Template.EmbeddedTmpl": true,
	"api.TaskArtifact.GetterHeaders": true, "api.TaskArtifact.GetterOptions": true, "api.ServiceCheck.Header": true,
	"api.Job.Payload":          true,
	"api.JobSubmission.Source": true, "api.JobSubmission.Variables": true, "api.JobSubmission.VariableFlags": true,
	"api.Variable.Items": true, "api.Variable.Lock": true,
}

// fieldAliases maps the former name of a field in the file, with its type, like "state.HandleRecord.driver_state", to the
// current name of the field. Records with a former name can be read; the next write stores the current name.
var fieldAliases = map[string]string{}
