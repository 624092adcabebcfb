package jobspec

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/nomad/api"
)

// decoder decodes HCL bodies into the types of the API, according to their hcl tags. The library's
// own decoder is not used, because it panics on blocks that are maps and on durations.
type decoder struct {
	evalContext *hcl.EvalContext
	budget      *evaluationBudget
	ranges      sourceRangeByPath
	// deferredDecodes are functions that decode the bodies without a schema. They run only after all other parts were
	// decoded without errors.
	deferredDecodes []func() hcl.Diagnostics
}

// decodeJob decodes the job block, whose body is passed with dynamic blocks expanded.
func (d *decoder) decodeJob(block *hcl.Block, body hcl.Body) (*api.Job, hcl.Diagnostics) {
	d.ranges.addRangeIfAbsent(nil, block.DefRange)
	job := &api.Job{}
	diags := d.decodeStruct(body, reflect.ValueOf(job).Elem(), nil)
	if diags.HasErrors() {
		return nil, diags
	}
	setJobIDAndName(job, block.Labels[0])
	var schemalessDiags hcl.Diagnostics
	for _, evaluate := range d.deferredDecodes {
		schemalessDiags = append(schemalessDiags, evaluate()...)
	}
	return job, append(diags, markPrintOnlyFirst(schemalessDiags, "")...)
}

// structDecodeExtension defines how those attributes and blocks of a struct type are decoded that its hcl tags do
// not describe.
type structDecodeExtension struct {
	extraAttributes []hcl.AttributeSchema
	extraBlocks     []extensionBlock
	// attributesDecodedByAfterDecode are the attributes of the type that afterDecode decodes.
	attributesDecodedByAfterDecode []string
	// beforeDecode runs before the fields of the type are decoded, to set defaults.
	beforeDecode func(target any)
	// afterDecode runs when the fields are set, with the content of the body.
	afterDecode func(d *decoder, content *hcl.BodyContent, target any, path []string) hcl.Diagnostics
}

// extensionBlock is a type of block that a structDecodeExtension decodes, and the struct type of its content.
type extensionBlock struct {
	hcl.BlockHeaderSchema
	contentStructType reflect.Type
}

// decodeStruct decodes a body into a struct. path is the position of the body in the job.
func (d *decoder) decodeStruct(body hcl.Body, target reflect.Value, path []string) hcl.Diagnostics {
	if diag := d.budget.chargeCost(blockCost, body.MissingItemRange()); diag != nil {
		return hcl.Diagnostics{diag}
	}
	t := target.Type()
	p, ext := decodePlanOf(t), typeExtensions[t]
	if ext.beforeDecode != nil {
		ext.beforeDecode(target.Addr().Interface())
	}
	content, diags := body.Content(bodySchemaOf(t))
	sortBySourceOrder(diags)
	for _, f := range p.attrs {
		attr := content.Attributes[f.hclName]
		if attr == nil {
			continue
		}
		d.ranges.addRangeIfAbsent(joinPath(path, f.hclName), attr.Range)
		if !slices.Contains(ext.attributesDecodedByAfterDecode, f.hclName) {
			diags = append(diags, d.decodeAttribute(attr.Expr, target.Field(f.structIndex))...)
		}
	}
	for _, f := range p.blocks {
		if hasBlockType(ext.extraBlocks, f.hclName) {
			continue
		}
		blocks := content.Blocks.OfType(f.hclName)
		if attr := content.Attributes[f.hclName]; attr != nil {
			diags = append(diags, d.decodeMapAttribute(attr, blocks, target.Field(f.structIndex), path)...)
			continue
		}
		diags = append(diags, d.decodeBlocks(blocks, target.Field(f.structIndex), joinPath(path, f.hclName))...)
	}
	if ext.afterDecode != nil {
		diags = append(diags, ext.afterDecode(d, content, target.Addr().Interface(), path)...)
	}
	return diags
}

// sortBySourceOrder sorts the diagnostics of one body by their position in the file: the HCL library returns attributes in
// the random order of a map.
func sortBySourceOrder(diags hcl.Diagnostics) {
	slices.SortStableFunc(diags, func(a, b *hcl.Diagnostic) int {
		if a.Subject == nil || b.Subject == nil {
			return 0
		}
		return cmp.Compare(a.Subject.Start.Byte, b.Subject.Start.Byte)
	})
}

func hasBlockType(blocks []extensionBlock, name string) bool {
	return slices.ContainsFunc(blocks, func(b extensionBlock) bool { return b.Type == name })
}

// joinPath returns a new path with the elements of path and more.
func joinPath(path []string, more ...string) []string {
	return append(slices.Clip(path), more...)
}

// decodeBlocks decodes all blocks of one type into a field.
func (d *decoder) decodeBlocks(blocks hcl.Blocks, field reflect.Value, path []string) hcl.Diagnostics {
	if len(blocks) == 0 {
		return nil
	}
	t := field.Type()
	switch {
	case t.Kind() == reflect.Slice:
		return d.decodeList(blocks, field, path)
	case t.Kind() == reflect.Map && blockStructType(t) != nil:
		return d.decodeLabelledMap(blocks, field, path)
	}
	d.ranges.addRangeIfAbsent(path, blocks[0].DefRange)
	var diags hcl.Diagnostics
	for _, other := range blocks[1:] {
		diags = append(diags, duplicateBlockDiagnostic(other, blocks[0]))
	}
	body := blocks[0].Body
	if t.Kind() == reflect.Map {
		return append(diags, d.decodeOrDeferSchemalessBlock(body, field, path)...)
	}
	element := reflect.New(t.Elem())
	diags = append(diags, d.decodeStruct(body, element.Elem(), path)...)
	field.Set(element)
	return diags
}

func duplicateBlockDiagnostic(block, first *hcl.Block) *hcl.Diagnostic {
	return errorAt(fmt.Sprintf("Duplicate %s block", block.Type),
		fmt.Sprintf("Only one %s block is allowed. Another was defined at %s.", block.Type, first.DefRange), block.DefRange)
}

// decodeList decodes repeated blocks into a slice of structs or of pointers.
func (d *decoder) decodeList(blocks hcl.Blocks, field reflect.Value, path []string) hcl.Diagnostics {
	var diags hcl.Diagnostics
	list := reflect.MakeSlice(field.Type(), 0, len(blocks))
	for i, block := range blocks {
		element := reflect.New(blockStructType(field.Type()))
		diags = append(diags, d.decodeElement(block, element, path, i)...)
		if field.Type().Elem().Kind() != reflect.Pointer {
			element = element.Elem()
		}
		list = reflect.Append(list, element)
	}
	field.Set(list)
	return diags
}

// decodeElement decodes one block of a list into *element.
func (d *decoder) decodeElement(block *hcl.Block, element reflect.Value, path []string, blockIndex int) hcl.Diagnostics {
	key := strconv.Itoa(blockIndex)
	if label := decodePlanOf(element.Elem().Type()).labelFieldIndex; label >= 0 {
		key = block.Labels[0]
		setLabel(element.Elem().Field(label), key)
	} else if blockIndex == 0 {
		d.ranges.addRangeIfAbsent(path, block.DefRange)
	}
	path = joinPath(path, key)
	d.ranges.addRangeIfAbsent(path, block.DefRange)
	return d.decodeStruct(block.Body, element.Elem(), path)
}

// decodeLabelledMap decodes blocks into a map by label. The last block with a label wins.
func (d *decoder) decodeLabelledMap(blocks hcl.Blocks, field reflect.Value, path []string) hcl.Diagnostics {
	var diags hcl.Diagnostics
	out := reflect.MakeMap(field.Type())
	for i, block := range blocks {
		element := reflect.New(blockStructType(field.Type()))
		diags = append(diags, d.decodeElement(block, element, path, i)...)
		out.SetMapIndex(reflect.ValueOf(block.Labels[0]), element)
	}
	field.Set(out)
	return diags
}

func setLabel(field reflect.Value, label string) {
	if field.Kind() == reflect.Pointer {
		field.Set(reflect.ValueOf(&label))
		return
	}
	field.SetString(label)
}
