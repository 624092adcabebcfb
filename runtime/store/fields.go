package store

import (
	"reflect"
	"slices"
	"strings"
	"time"
)

// storedField is a field of a struct in the state file.
type storedField struct {
	name     string // name of the field in the file
	index    []int  // index of the field in the struct, for [reflect.Value.FieldByIndexErr]
	typ      reflect.Type
	isSecret bool
}

// storedFields returns the fields of a struct under their names in the file: the name in the tag "store", and without
// a tag the name in Go. The fields of an embedded struct are fields of the struct.
func storedFields(t reflect.Type) []storedField {
	var fields []storedField
	for _, f := range reflect.VisibleFields(t) {
		name, options, _ := strings.Cut(f.Tag.Get("store"), ",")
		if !f.IsExported() || name == "-" || f.Anonymous && name == "" && isStruct(f.Type) {
			continue
		}
		if name == "" {
			name = f.Name
		}
		fields = append(fields, storedField{
			name: name, index: f.Index, typ: f.Type,
			isSecret: slices.Contains(strings.Split(options, ","), "secret") || secretAPIFields[t.String()+"."+name],
		})
	}
	return fields
}

func isStruct(t reflect.Type) bool {
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

// fieldAliases maps a name that earlier releases have stored to the present name of the field: the key is the type and
// the former name, like "state.HandleRecord.driver_state". A record with a former name is read, and written under the
// present one.
var fieldAliases = map[string]string{}
