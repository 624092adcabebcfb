package store

import (
	"reflect"
	"slices"
	"strings"
	"time"
)

// storedField describes a struct field that is encoded in the state file.
type storedField struct {
	storedName string // the field's name in the file
	fieldIndex []int  // the field's index in the struct, for [reflect.Value.FieldByIndexErr]
	goType     reflect.Type
	isSecret   bool
}

// storedFields returns a struct type's encoded fields. A field's name in the file is the name in its tag "store", or without a
// tag its Go name. Fields of an embedded struct count as fields of the outer struct.
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

// secretAPIFields are the Nomad API type fields that hold or may hold secrets: the environment, a variable's items and lock,
// and texts in jobs and templates. Other types mark such fields with the option "secret" in the tag.
var secretAPIFields = map[string]bool{
	"api.Task.Env": true, "api.SidecarTask.Env": true, "api.Template.EmbeddedTmpl": true,
	"api.TaskArtifact.GetterHeaders": true, "api.TaskArtifact.GetterOptions": true, "api.ServiceCheck.Header": true,
	"api.Job.Payload":          true,
	"api.JobSubmission.Source": true, "api.JobSubmission.Variables": true, "api.JobSubmission.VariableFlags": true,
	"api.Variable.Items": true, "api.Variable.Lock": true,
	"api.ACLToken.SecretID": true,
}

// fieldAliases maps a field's former name in the file, with its type, like "state.HandleRecord.driver_state", to its current
// name. Records with a former name can be read; the next write stores the current name.
var fieldAliases = map[string]string{}
