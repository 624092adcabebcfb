package model

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
)

// diffedJobBlock is a block as a diff shows it: attributes as text, and inner blocks.
type diffedJobBlock struct {
	name string
	// keyAmongSameName distinguishes blocks with the same name. Blocks without a key form a set: they are added or deleted, but
	// never edited.
	keyAmongSameName string
	attributeByKey   map[string]diffAttribute
	innerBlocks      []*diffedJobBlock
	// fingerprint is the same text for equal blocks.
	fingerprint string
}

type diffAttribute struct{ name, text string }

func (p *diffedJobBlock) attributesOrNil() map[string]diffAttribute {
	if p == nil {
		return nil
	}
	return p.attributeByKey
}

func (p *diffedJobBlock) innerBlocksOrNil() []*diffedJobBlock {
	if p == nil {
		return nil
	}
	return p.innerBlocks
}

// diffBlockNames maps field names to their block names in diffs.
var diffBlockNames = map[string]string{
	"Actions": "Action", "Affinities": "Affinity", "Artifacts": "Artifact", "CNI": "CNIConfig", "Checks": "Check",
	"Connect": "ConsulConnect", "Constraints": "Constraint", "Devices": "Device", "DynamicPorts": "Dynamic Port",
	"Identities": "Identity", "Links": "Link", "Networks": "Network", "Regions": "Region", "ReservedPorts": "Static Port",
	"ScalingPolicies": "Scaling", "Secrets": "Secret", "Services": "Service", "Spreads": "Spread", "Templates": "Template",
	"VolumeMounts": "VolumeMount", "Volumes": "Volume", "Wait": "Template",
}

// fieldsHiddenInDiff are the fields diffs do not show: fields set by the agent, fields shown elsewhere, and fields that only the
// client's canonical form has.
var fieldsHiddenInDiff = map[reflect.Type][]string{
	reflect.TypeFor[api.Job](): {
		"CreateIndex", "ID", "JobModifyIndex", "Migrate", "ModifyIndex", "NomadTokenID", "Payload", "Reschedule", "Stable", "Status",
		"StatusDescription", "SubmitTime", "TaskGroups", "Update", "Version", "VersionTag",
	},
	reflect.TypeFor[api.TaskGroup]():       {"MaxClientDisconnect", "Name", "PreventRescheduleOnLost", "StopAfterClientDisconnect", "Tasks"},
	reflect.TypeFor[api.Task]():            {"Name"},
	reflect.TypeFor[api.UpdateStrategy]():  {"Stagger"},
	reflect.TypeFor[api.ScalingPolicy]():   {"CreateIndex", "ID", "ModifyIndex", "Namespace", "Target"},
	reflect.TypeFor[api.LogConfig]():       {"Enabled"},
	reflect.TypeFor[api.CSIMountOptions](): {"MountFlags"}, // MountFlags may contain a password
}

// blockKeyFields identify a block among several blocks of its type.
var blockKeyFields = map[reflect.Type]string{
	reflect.TypeFor[api.Action]():           "Name",
	reflect.TypeFor[api.Secret]():           "Name",
	reflect.TypeFor[api.Service]():          "Name",
	reflect.TypeFor[api.ServiceCheck]():     "Name",
	reflect.TypeFor[api.Template]():         "DestPath",
	reflect.TypeFor[api.VolumeRequest]():    "Name",
	reflect.TypeFor[api.WorkloadIdentity](): "Name",
}

// singletonBlockKey is the key for a block that exists at most once.
const singletonBlockKey = "the only"

// newDiffedJobBlock returns the part for a job, group or task; nil for nil.
func newDiffedJobBlock[T any](v *T) *diffedJobBlock {
	if v == nil {
		return nil
	}
	return newDiffBlockOfStruct("", singletonBlockKey, reflect.ValueOf(v).Elem())
}

func newDiffBlockOfStruct(name, key string, v reflect.Value) *diffedJobBlock {
	p := &diffedJobBlock{name: name, keyAmongSameName: key, attributeByKey: make(map[string]diffAttribute)}
	hidden := fieldsHiddenInDiff[v.Type()]
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.IsExported() && f.Tag.Get("json") != "-" && !slices.Contains(hidden, f.Name) {
			p.addField(f.Name, v.Field(i))
		}
	}
	return p.sortAndFingerprint()
}

// addField adds one struct field.
func (p *diffedJobBlock) addField(name string, v reflect.Value) {
	kind := v.Kind()
	if kind == reflect.Pointer {
		kind = v.Type().Elem().Kind()
	}
	switch kind {
	case reflect.Struct:
		if v = reflect.Indirect(v); v.IsValid() {
			p.innerBlocks = append(p.innerBlocks, newDiffBlockOfStruct(diffBlockName(name), singletonBlockKey, v))
		}
	case reflect.Slice:
		p.addList(name, v)
	case reflect.Map:
		p.addMap(name, v)
	default:
		p.setAttribute(name, formatScalar(v))
	}
}

func (p *diffedJobBlock) setAttribute(name, text string) {
	p.attributeByKey[name] = diffAttribute{name, text}
}

func diffBlockName(fieldName string) string {
	if name, ok := diffBlockNames[fieldName]; ok {
		return name
	}
	return fieldName
}

// addList adds a list of blocks, or a list of texts as one block with an attribute per text, all under the list's name.
func (p *diffedJobBlock) addList(name string, v reflect.Value) {
	if v.Len() == 0 {
		return
	}
	set := &diffedJobBlock{name: name, keyAmongSameName: singletonBlockKey, attributeByKey: make(map[string]diffAttribute)}
	for i := range v.Len() {
		e := v.Index(i)
		for e.Kind() == reflect.Pointer {
			e = e.Elem()
		}
		if e.Kind() == reflect.Struct {
			p.innerBlocks = append(p.innerBlocks, newDiffBlockOfStruct(diffBlockName(name), diffBlockKey(e), e))
			continue
		}
		text := formatScalar(e)
		set.attributeByKey[text] = diffAttribute{name, text}
	}
	if len(set.attributeByKey) > 0 {
		p.innerBlocks = append(p.innerBlocks, set.sortAndFingerprint())
	}
}

func diffBlockKey(v reflect.Value) string {
	field, ok := blockKeyFields[v.Type()]
	if !ok {
		return ""
	}
	return "of " + formatScalar(v.FieldByName(field))
}

// addMap adds a map of texts as attributes with an index, a map of blocks as blocks, and
// any other map as one block.
func (p *diffedJobBlock) addMap(name string, v reflect.Value) {
	switch elem := v.Type().Elem(); elem.Kind() {
	case reflect.String:
		for key, value := range v.Seq2() {
			p.setAttribute(name+"["+key.String()+"]", value.String())
		}
	case reflect.Pointer:
		for _, value := range v.Seq2() {
			p.innerBlocks = append(p.innerBlocks, newDiffBlockOfStruct(diffBlockName(name), diffBlockKey(value.Elem()), value.Elem()))
		}
	default:
		if v.Len() == 0 {
			return
		}
		free := &diffedJobBlock{name: name, keyAmongSameName: singletonBlockKey, attributeByKey: make(map[string]diffAttribute)}
		for key, value := range v.Seq2() {
			free.addFlattened(key.String(), value)
		}
		p.innerBlocks = append(p.innerBlocks, free.sortAndFingerprint())
	}
}

// addFlattened adds a configuration value without a schema.
func (p *diffedJobBlock) addFlattened(path string, v reflect.Value) {
	for v.Kind() == reflect.Interface || v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	switch {
	case !v.IsValid():
		p.setAttribute(path, "")
	case v.Kind() == reflect.Map:
		for key, value := range v.Seq2() {
			p.addFlattened(fmt.Sprintf("%s[%v]", path, key), value)
		}
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			p.addFlattened(fmt.Sprintf("%s[%d]", path, i), v.Index(i))
		}
	default:
		p.setAttribute(path, formatScalar(v))
	}
}

// formatScalar formats a value for diffs. A nil number is "0", because Nomad's own job types have no nil numbers. A nil
// duration is empty.
func formatScalar(v reflect.Value) string {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			if v.Type().Elem() == reflect.TypeFor[time.Duration]() {
				return ""
			}
			return formatScalar(reflect.Zero(v.Type().Elem()))
		}
		v = v.Elem()
	}
	if v.CanFloat() {
		return strconv.FormatFloat(v.Float(), 'f', -1, 64) // whole numbers have no decimal point, as in HCL and JSON
	}
	switch {
	case v.CanInt():
		return strconv.FormatInt(v.Int(), 10) // also for a duration
	case v.CanUint():
		return strconv.FormatUint(v.Uint(), 10)
	}
	return fmt.Sprint(v.Interface())
}

// sortAndFingerprint sorts the inner parts and sets the part's fingerprint.
func (p *diffedJobBlock) sortAndFingerprint() *diffedJobBlock {
	slices.SortStableFunc(p.innerBlocks, func(a, b *diffedJobBlock) int {
		return strings.Compare(a.name+"\x00"+a.fingerprint, b.name+"\x00"+b.fingerprint)
	})
	lines := make([]string, 0, len(p.attributeByKey))
	for key, a := range p.attributeByKey {
		lines = append(lines, strconv.Quote(key)+"="+strconv.Quote(a.text))
	}
	slices.Sort(lines)
	var b strings.Builder
	b.WriteString("{" + strings.Join(lines, ","))
	for _, child := range p.innerBlocks {
		b.WriteString(";" + child.name + child.fingerprint)
	}
	b.WriteString("}")
	p.fingerprint = b.String()
	return p
}
