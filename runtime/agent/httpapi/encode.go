package httpapi

import (
	"cmp"
	"encoding"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/nomad/api"
)

// encodeNomadJSON returns the JSON of a value in the format of Nomad's API, which differs from
// encoding/json: names are sorted, a zero time is null, empty fields are present (except for a few
// types), floating-point numbers always have a point, and HTML is not escaped.
func encodeNomadJSON(value any) ([]byte, error) {
	return appendNomadJSON(nil, reflect.ValueOf(value), false)
}

var (
	timeType            = reflect.TypeFor[time.Time]()
	jsonMarshalerType   = reflect.TypeFor[json.Marshaler]()
	jobType             = reflect.TypeFor[api.Job]()
	allocType           = reflect.TypeFor[api.Allocation]()
	allocStubType       = reflect.TypeFor[allocStub]()
	allocWithoutJobType = reflect.TypeFor[eventAllocation]()
	textMarshalerType   = reflect.TypeFor[encoding.TextMarshaler]()
	omitEmptyTypes      = []reflect.Type{reflect.TypeFor[api.Evaluation](), reflect.TypeFor[api.Allocation](), reflect.TypeFor[eventAllocation](), reflect.TypeFor[api.NetworkResource](), reflect.TypeFor[api.Port](), reflect.TypeFor[api.PortMapping]()}
	structFieldCache    sync.Map // maps each reflect.Type to its []*jsonField
	maxEncodeDepth      = 200
)

// fieldRenames are the names that a server uses for fields of the client's types. A field whose new name is
// empty is not sent; a field with another new name is always sent.
var fieldRenames = map[reflect.Type]map[string]string{
	reflect.TypeFor[api.Attribute]():     {"BoolVal": "Bool", "FloatVal": "Float", "IntVal": "Int", "StringVal": "String"},
	reflect.TypeFor[api.Job]():           {"Migrate": "", "Reschedule": ""},
	reflect.TypeFor[api.JobUILink]():     {"URL": "Url"},
	reflect.TypeFor[api.LogConfig]():     {"Enabled": ""},
	reflect.TypeFor[nodeView]():          {"Reserved": "", "Resources": ""},
	reflect.TypeFor[api.ScalingPolicy](): {"Namespace": ""},
	reflect.TypeFor[api.Service]():       {"CheckRestart": ""},
	reflect.TypeFor[api.ServiceCheck]():  {"Advertise": ""},
	reflect.TypeFor[api.Task]():          {"CSIPluginConfig": "CSIPluginConfig"},
	reflect.TypeFor[api.TaskEvent]():     {"DiskSize": ""},
}

// omitEmptyFields are fields that are omitted when they are empty, in types whose other fields are not.
var omitEmptyFields = map[reflect.Type]string{reflect.TypeFor[api.Variable](): "Items"}

// jobNamespacePlaceholder is replaced by the namespace of the job that contains the object.
const jobNamespacePlaceholder = "namespace of the job"

// rescheduleDelayPlaceholder is replaced by the delay of a reschedule, which depends on the tracker that contains
// the event.
const rescheduleDelayPlaceholder = "delay of the reschedule"

// serverOnlyFields are the fields that the client's types lack, with the JSON of their values.
var serverOnlyFields = map[reflect.Type]map[string]string{
	reflect.TypeFor[api.MemoryStats](): {"MappedFile": "0"},
	reflect.TypeFor[nodeView](): {
		"ComputedClass": `""`, "IdentitySigningKeyID": `""`, "LastAllocUpdateIndex": "0", "LastMissedHeartbeatIndex": "0", "SecretID": `""`,
	},
	reflect.TypeFor[api.NodeListStub]():    {"HostVolumes": "null"},
	reflect.TypeFor[api.RescheduleEvent](): {"Delay": rescheduleDelayPlaceholder},
	reflect.TypeFor[api.Service]():         {"Namespace": jobNamespacePlaceholder},
	reflect.TypeFor[api.TaskState]():       {"Paused": `""`},
}

// nilAsZeroTypes are the types whose numbers, booleans and strings are written as zero when they are
// nil. A nil duration is null.
var nilAsZeroTypes = map[reflect.Type]bool{reflect.TypeFor[api.Resources](): true, reflect.TypeFor[api.TaskGroup](): true}

// nilAsEmptyListFields are lists that are written as [] and not as null when they are nil.
var nilAsEmptyListFields = map[reflect.Type]string{reflect.TypeFor[api.ServiceRegistration](): "Tags"}

// jsonField describes how a field of a struct is encoded.
type jsonField struct {
	name                    string
	quotedNameAndColon      string // the field's name in JSON, with quotation marks and the colon
	encoding                valueEncoding
	hiddenFromReadOnlyToken bool  // the field is hidden from clients that use the read-only token
	reflectIndex            []int // nil if the field has a constant value
	constantJSON            string
	omitEmpty               bool
	encodedAsString         bool
	encodesNilAsZero        bool
	encodesNilAsEmptyList   bool
}

// jsonFieldsOf returns the fields of a struct in the order of their names.
func jsonFieldsOf(t reflect.Type) []*jsonField {
	if known, ok := structFieldCache.Load(t); ok {
		return known.([]*jsonField)
	}
	var fields []*jsonField
	for _, f := range reflect.VisibleFields(t) {
		tag, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		embedded := f.Anonymous && tag == "" && derefType(f.Type).Kind() == reflect.Struct
		if !f.IsExported() || tag == "-" || embedded {
			continue
		}
		name, named := fieldRenames[t][f.Name]
		if named && name == "" {
			continue
		}
		fields = append(fields, &jsonField{
			name:                    cmp.Or(name, tag, f.Name),
			encoding:                encodingOfType(f.Type),
			hiddenFromReadOnlyToken: isFieldHiddenFromReadOnlyToken(t, cmp.Or(name, tag, f.Name)),
			reflectIndex:            f.Index,
			omitEmpty:               !named && (strings.Contains(options, "omitempty") || slices.Contains(omitEmptyTypes, t) || omitEmptyFields[t] == f.Name),
			encodedAsString:         strings.Contains(options, "string"),
			encodesNilAsZero:        nilAsZeroTypes[t] && slices.Contains([]reflect.Kind{reflect.Bool, reflect.Int, reflect.String}, derefType(f.Type).Kind()),
			encodesNilAsEmptyList:   nilAsEmptyListFields[t] == f.Name,
		})
	}
	for name, text := range serverOnlyFields[t] {
		fields = append(fields, &jsonField{name: name, constantJSON: text})
	}
	for _, f := range fields {
		f.quotedNameAndColon = string(appendJSONString(nil, f.name)) + ":"
	}
	slices.SortStableFunc(fields, func(a, b *jsonField) int { return strings.Compare(a.name, b.name) })
	structFieldCache.Store(t, fields)
	return fields
}

func isFieldHiddenFromReadOnlyToken(t reflect.Type, name string) bool {
	shown, limited := readOnlyShownFields[t]
	return limited && !slices.Contains(shown, name) || slices.Contains(readOnlyHiddenFields[t], name)
}

func derefType(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t
}

// valueEncoding selects how values of a type are encoded.
type valueEncoding byte

const (
	encodeByKind    valueEncoding = iota // according to the reflect.Kind of the value
	encodeTime                           // as a time in RFC 3339, or null for a zero time
	encodeMarshaler                      // values that implement json.Marshaler
	encodeText                           // values that implement encoding.TextMarshaler
)

func encodingOfType(t reflect.Type) valueEncoding {
	switch {
	case t == timeType:
		return encodeTime
	case t.Implements(jsonMarshalerType):
		return encodeMarshaler
	case t.Implements(textMarshalerType) && t.Kind() != reflect.Pointer:
		return encodeText
	}
	return encodeByKind
}

// jsonEncoder has the access rights of the client, and data of the job and of the allocation that are being
// encoded.
type jsonEncoder struct {
	clientIsReadOnly              bool                                   // fields that the read-only token may not read are encoded as unset
	currentJobNamespace           string                                 // namespace of the job that is being encoded
	currentDelayByRescheduleEvent map[*api.RescheduleEvent]time.Duration // delays of the allocation that is being encoded
}

func appendNomadJSON(b []byte, v reflect.Value, clientIsReadOnly bool) ([]byte, error) {
	if !v.IsValid() {
		return append(b, "null"...), nil
	}
	return (&jsonEncoder{clientIsReadOnly: clientIsReadOnly}).appendJSON(b, v, encodingOfType(v.Type()), 0)
}

func (e *jsonEncoder) appendJSON(b []byte, v reflect.Value, how valueEncoding, depth int) ([]byte, error) {
	if depth > maxEncodeDepth {
		return b, fmt.Errorf("encode %s: nested too deep", v.Type())
	}
	if (v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface) && v.IsNil() {
		return append(b, "null"...), nil
	}
	switch how {
	case encodeTime:
		t := v.Interface().(time.Time)
		if t.IsZero() {
			return append(b, "null"...), nil
		}
		b = append(b, '"')
		b = t.UTC().AppendFormat(b, time.RFC3339Nano)
		return append(b, '"'), nil
	case encodeMarshaler:
		text, err := v.Interface().(json.Marshaler).MarshalJSON()
		return append(b, text...), err
	case encodeText:
		text, err := v.Interface().(encoding.TextMarshaler).MarshalText()
		return appendJSONString(b, string(text)), err
	}
	switch v.Kind() {
	case reflect.Pointer:
		return e.appendJSON(b, v.Elem(), encodingOfType(v.Type().Elem()), depth+1)
	case reflect.Interface:
		// All numbers that were decoded from JSON are float64. A number without a fraction is encoded as an
		// integer.
		if f, ok := v.Elem().Interface().(float64); ok && f == math.Trunc(f) && math.Abs(f) < 1<<53 {
			return strconv.AppendInt(b, int64(f), 10), nil
		}
		return e.appendJSON(b, v.Elem(), encodingOfType(v.Elem().Type()), depth+1)
	case reflect.Bool:
		return strconv.AppendBool(b, v.Bool()), nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return strconv.AppendInt(b, v.Int(), 10), nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return strconv.AppendUint(b, v.Uint(), 10), nil
	case reflect.Float32, reflect.Float64:
		return appendJSONFloat(b, v.Float()), nil
	case reflect.String:
		return appendJSONString(b, v.String()), nil
	case reflect.Struct:
		return e.appendStruct(b, v, depth)
	case reflect.Map:
		return e.appendMap(b, v, depth)
	case reflect.Slice, reflect.Array:
		return e.appendList(b, v, depth)
	}
	return b, fmt.Errorf("encode %s: there is no JSON of it", v.Type())
}

func (e *jsonEncoder) appendStruct(b []byte, v reflect.Value, depth int) ([]byte, error) {
	if v.Type() == jobType {
		e.currentJobNamespace = api.DefaultNamespace
		if named := v.FieldByName("Namespace"); !named.IsNil() {
			e.currentJobNamespace = named.Elem().String()
		}
	}
	switch v.Type() {
	case allocType:
		if v.CanAddr() {
			if alloc := v.Addr().Interface().(*api.Allocation); alloc.Job != nil {
				e.currentDelayByRescheduleEvent = rescheduleDelays(alloc)
			}
		}
	case allocStubType:
		e.currentDelayByRescheduleEvent = v.Interface().(allocStub).delayByRescheduleEvent
	case allocWithoutJobType:
		e.currentDelayByRescheduleEvent = v.Interface().(eventAllocation).delayByRescheduleEvent
	}
	b = append(b, '{')
	first := true
	for _, f := range jsonFieldsOf(v.Type()) {
		value, err := v.FieldByIndexErr(f.reflectIndex)
		if err == nil && f.hiddenFromReadOnlyToken && e.clientIsReadOnly {
			value = reflect.Zero(value.Type())
		}
		if err != nil || f.omitEmpty && isEmptyJSONValue(value) {
			continue
		}
		if f.encodesNilAsZero && value.Kind() == reflect.Pointer && value.IsNil() {
			value = reflect.Zero(value.Type().Elem())
		}
		if f.encodesNilAsEmptyList && value.IsNil() {
			value = reflect.MakeSlice(value.Type(), 0, 0)
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		b = append(b, f.quotedNameAndColon...)
		if f.reflectIndex == nil {
			switch f.constantJSON {
			case jobNamespacePlaceholder:
				b = appendJSONString(b, e.currentJobNamespace)
			case rescheduleDelayPlaceholder:
				delay := time.Duration(0)
				if v.CanAddr() {
					delay = e.currentDelayByRescheduleEvent[v.Addr().Interface().(*api.RescheduleEvent)]
				}
				b = strconv.AppendInt(b, int64(delay), 10)
			default:
				b = append(b, f.constantJSON...)
			}
			continue
		}
		if f.encodedAsString {
			b = append(b, '"')
		}
		if b, err = e.appendJSON(b, value, f.encoding, depth+1); err != nil {
			return b, err
		}
		if f.encodedAsString {
			b = append(b, '"')
		}
	}
	return append(b, '}'), nil
}

func isEmptyJSONValue(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Map, reflect.Slice:
		return v.Len() == 0
	}
	return v.IsZero()
}

func (e *jsonEncoder) appendMap(b []byte, v reflect.Value, depth int) ([]byte, error) {
	if v.IsNil() {
		return append(b, "null"...), nil
	}
	names := make([]string, 0, v.Len())
	values := make(map[string]reflect.Value, v.Len())
	for key, value := range v.Seq2() {
		name := key.String()
		if key.Kind() != reflect.String {
			name = fmt.Sprint(key.Interface())
		}
		names = append(names, name)
		values[name] = value
	}
	slices.Sort(names)
	b = append(b, '{')
	how := encodingOfType(v.Type().Elem())
	for i, name := range names {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendJSONString(b, name), ':')
		var err error
		if b, err = e.appendJSON(b, values[name], how, depth+1); err != nil {
			return b, err
		}
	}
	return append(b, '}'), nil
}

func (e *jsonEncoder) appendList(b []byte, v reflect.Value, depth int) ([]byte, error) {
	if v.Kind() == reflect.Slice && v.IsNil() {
		return append(b, "null"...), nil
	}
	if v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8 {
		b = append(b, '"')
		b = base64.StdEncoding.AppendEncode(b, v.Bytes())
		return append(b, '"'), nil
	}
	b = append(b, '[')
	how := encodingOfType(v.Type().Elem())
	for i := range v.Len() {
		if i > 0 {
			b = append(b, ',')
		}
		var err error
		if b, err = e.appendJSON(b, v.Index(i), how, depth+1); err != nil {
			return b, err
		}
	}
	return append(b, ']'), nil
}

// appendJSONFloat writes a number with a decimal point, or null for NaN and infinite values, which JSON lacks.
func appendJSONFloat(b []byte, f float64) []byte {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return append(b, "null"...)
	}
	text := strconv.FormatFloat(f, 'g', -1, 64)
	if !strings.ContainsAny(text, ".e") {
		text += ".0"
	}
	return append(b, text...)
}

const hexDigits = "0123456789abcdef"

func appendJSONString(b []byte, s string) []byte {
	b = append(b, '"')
	plain := 0 // start of the bytes that are copied without an escape
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c < utf8.RuneSelf && c != '"' && c != '\\' {
			i++
			continue
		}
		if c < utf8.RuneSelf {
			b = append(b, s[plain:i]...)
			switch c {
			case '"', '\\':
				b = append(b, '\\', c)
			case '\n':
				b = append(b, `\n`...)
			case '\r':
				b = append(b, `\r`...)
			case '\t':
				b = append(b, `\t`...)
			default:
				b = append(b, `\u00`...)
				b = append(b, hexDigits[c>>4], hexDigits[c&0xf])
			}
			i++
			plain = i
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			b = append(append(b, s[plain:i]...), `\ufffd`...)
			plain = i + size
		case r == '\u2028' || r == '\u2029':
			b = append(append(b, s[plain:i]...), `\u202`...)
			b = append(b, hexDigits[r&0xf])
			plain = i + size
		}
		i += size
	}
	b = append(b, s[plain:]...)
	return append(b, '"')
}
