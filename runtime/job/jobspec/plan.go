package jobspec

import (
	"reflect"
	"strings"
	"sync"

	"github.com/hashicorp/hcl/v2"
)

// structDecodePlan describes how a struct type is decoded, according to its hcl tags.
type structDecodePlan struct {
	schema          *hcl.BodySchema
	attrs           []plannedField
	blocks          []plannedField
	labelFieldIndex int // index of the field for the label, or -1
}

// plannedField is one field of a plan: its index, and its name in the file.
type plannedField struct {
	hclName     string
	structIndex int
}

var decodePlans sync.Map // reflect.Type → *structDecodePlan

// decodePlanOf returns the cached plan of a struct type.
func decodePlanOf(t reflect.Type) *structDecodePlan {
	if p, ok := decodePlans.Load(t); ok {
		return p.(*structDecodePlan)
	}
	p, _ := decodePlans.LoadOrStore(t, newDecodePlan(t))
	return p.(*structDecodePlan)
}

func newDecodePlan(t reflect.Type) *structDecodePlan {
	p := &structDecodePlan{schema: &hcl.BodySchema{}, labelFieldIndex: -1}
	for i := range t.NumField() {
		field := t.Field(i)
		name, kind, _ := strings.Cut(field.Tag.Get("hcl"), ",")
		switch {
		case kind == "label":
			p.labelFieldIndex = i
		case name == "" || name == "-":
			// The decoder skips a block that the server sets, or that an extension decodes.
		case kind == "block":
			p.addBlock(name, i, field.Type)
		default:
			// A nil pointer represents an absent value, so a pointer field is never required.
			required := kind != "optional" && field.Type.Kind() != reflect.Pointer
			p.attrs = append(p.attrs, plannedField{name, i})
			p.schema.Attributes = append(p.schema.Attributes, hcl.AttributeSchema{Name: name, Required: required})
		}
	}
	return p
}

func (p *structDecodePlan) addBlock(name string, fieldIndex int, t reflect.Type) {
	p.blocks = append(p.blocks, plannedField{name, fieldIndex})
	header := hcl.BlockHeaderSchema{Type: name}
	if element := blockStructType(t); element != nil {
		if label := decodePlanOf(element).labelFieldIndex; label >= 0 {
			header.LabelNames = []string{labelName(element.Field(label))}
		}
	}
	p.schema.Blocks = append(p.schema.Blocks, header)
}

// blockStructType returns the struct type that a block of this field type decodes into, nil if the
// block is a map.
func blockStructType(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	return t
}

func labelName(field reflect.StructField) string {
	if name, _, _ := strings.Cut(field.Tag.Get("hcl"), ","); name != "" {
		return name
	}
	return strings.ToLower(field.Name)
}

// bodySchemaOf returns the attributes and blocks of a body that is decoded into a struct type.
func bodySchemaOf(t reflect.Type) *hcl.BodySchema {
	ext := typeExtensions[t]
	return withMetaAndEnvAttributes(decodePlanOf(t).extendedSchema(ext.extraAttributes, ext.extraBlocks), t)
}

// extendedSchema returns the schema of the plan with more attributes and blocks.
func (p *structDecodePlan) extendedSchema(attrs []hcl.AttributeSchema, blocks []extensionBlock) *hcl.BodySchema {
	if len(attrs)+len(blocks) == 0 {
		return p.schema
	}
	out := &hcl.BodySchema{
		Attributes: append(p.schema.Attributes[:len(p.schema.Attributes):len(p.schema.Attributes)], attrs...),
	}
	for _, block := range blocks {
		out.Blocks = append(out.Blocks, block.BlockHeaderSchema)
	}
	for _, block := range p.schema.Blocks {
		if !hasBlockType(blocks, block.Type) {
			out.Blocks = append(out.Blocks, block)
		}
	}
	return out
}
