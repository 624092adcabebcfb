package specwire

import (
	"fmt"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/hclspec/specpb"
)

// FromProto converts the message of a plugin to a Spec. FromProto only returns an error if the message is nested too
// deeply: block.Decode reports all other errors of an invalid message. For a nil
// message it returns nil.
func FromProto(p *specpb.Spec) (*hclspec.Spec, error) {
	return fromProto(p, hclspec.MaxDepth)
}

func fromProto(p *specpb.Spec, depth int) (*hclspec.Spec, error) {
	if p == nil {
		return nil, nil
	}
	if depth == 0 {
		return nil, fmt.Errorf("spec is nested deeper than %d levels", hclspec.MaxDepth)
	}
	switch b := p.GetBlock().(type) {
	case *specpb.Spec_Object:
		attributes := make(map[string]*hclspec.Spec, len(b.Object.GetAttributes()))
		for key, part := range b.Object.GetAttributes() {
			var err error
			if attributes[key], err = fromProto(part, depth-1); err != nil {
				return nil, err
			}
		}
		return hclspec.Object(attributes), nil
	case *specpb.Spec_Array:
		values := make([]*hclspec.Spec, len(b.Array.GetValues()))
		for i, part := range b.Array.GetValues() {
			var err error
			if values[i], err = fromProto(part, depth-1); err != nil {
				return nil, err
			}
		}
		return hclspec.Array(values...), nil
	case *specpb.Spec_Attr:
		return hclspec.Attr(b.Attr.GetName(), b.Attr.GetType(), b.Attr.GetRequired()), nil
	case *specpb.Spec_BlockAttrs:
		return hclspec.BlockAttrs(b.BlockAttrs.GetName(), b.BlockAttrs.GetType(), b.BlockAttrs.GetRequired()), nil
	case *specpb.Spec_Literal:
		return hclspec.Literal(b.Literal.GetValue()), nil
	case *specpb.Spec_Default:
		primary, err := fromProto(b.Default.GetPrimary(), depth-1)
		if err != nil {
			return nil, err
		}
		def, err := fromProto(b.Default.GetDefault(), depth-1)
		if err != nil {
			return nil, err
		}
		return hclspec.Default(primary, def), nil
	case *specpb.Spec_BlockValue:
		nested, err := fromProto(b.BlockValue.GetNested(), depth-1)
		if err != nil {
			return nil, err
		}
		return hclspec.Block(b.BlockValue.GetName(), nested, b.BlockValue.GetRequired()), nil
	case *specpb.Spec_BlockList:
		nested, err := fromProto(b.BlockList.GetNested(), depth-1)
		if err != nil {
			return nil, err
		}
		return hclspec.BlockList(b.BlockList.GetName(), nested, b.BlockList.GetMinItems(), b.BlockList.GetMaxItems()), nil
	case *specpb.Spec_BlockSet:
		nested, err := fromProto(b.BlockSet.GetNested(), depth-1)
		if err != nil {
			return nil, err
		}
		return hclspec.BlockSet(b.BlockSet.GetName(), nested, b.BlockSet.GetMinItems(), b.BlockSet.GetMaxItems()), nil
	case *specpb.Spec_BlockMap:
		nested, err := fromProto(b.BlockMap.GetNested(), depth-1)
		if err != nil {
			return nil, err
		}
		return hclspec.BlockMap(b.BlockMap.GetName(), b.BlockMap.GetLabels(), nested), nil
	default:
		return &hclspec.Spec{}, nil
	}
}

// Proto returns the message for s. For a nil Spec the message is nil.
func Proto(s *hclspec.Spec) *specpb.Spec {
	if s == nil {
		return nil
	}
	switch n := s.Node(); n.Kind {
	case hclspec.KindObject:
		attributes := make(map[string]*specpb.Spec, len(n.Attributes))
		for key, part := range n.Attributes {
			attributes[key] = Proto(part)
		}
		return &specpb.Spec{Block: &specpb.Spec_Object{Object: &specpb.Object{Attributes: attributes}}}
	case hclspec.KindArray:
		values := make([]*specpb.Spec, len(n.Values))
		for i, part := range n.Values {
			values[i] = Proto(part)
		}
		return &specpb.Spec{Block: &specpb.Spec_Array{Array: &specpb.Array{Values: values}}}
	case hclspec.KindAttr:
		return &specpb.Spec{Block: &specpb.Spec_Attr{Attr: &specpb.Attr{Name: n.Name, Type: n.Expression, Required: n.Required}}}
	case hclspec.KindBlock:
		return &specpb.Spec{Block: &specpb.Spec_BlockValue{BlockValue: &specpb.Block{Name: n.Name, Required: n.Required, Nested: Proto(n.Nested)}}}
	case hclspec.KindBlockAttrs:
		return &specpb.Spec{Block: &specpb.Spec_BlockAttrs{BlockAttrs: &specpb.BlockAttrs{Name: n.Name, Type: n.Expression, Required: n.Required}}}
	case hclspec.KindBlockList:
		return &specpb.Spec{Block: &specpb.Spec_BlockList{BlockList: &specpb.BlockList{Name: n.Name, MinItems: n.Min, MaxItems: n.Max, Nested: Proto(n.Nested)}}}
	case hclspec.KindBlockSet:
		return &specpb.Spec{Block: &specpb.Spec_BlockSet{BlockSet: &specpb.BlockSet{Name: n.Name, MinItems: n.Min, MaxItems: n.Max, Nested: Proto(n.Nested)}}}
	case hclspec.KindBlockMap:
		return &specpb.Spec{Block: &specpb.Spec_BlockMap{BlockMap: &specpb.BlockMap{Name: n.Name, Labels: n.Labels, Nested: Proto(n.Nested)}}}
	case hclspec.KindDefault:
		return &specpb.Spec{Block: &specpb.Spec_Default{Default: &specpb.Default{Primary: Proto(n.Nested), Default: Proto(n.Default)}}}
	case hclspec.KindLiteral:
		return &specpb.Spec{Block: &specpb.Spec_Literal{Literal: &specpb.Literal{Value: n.Expression}}}
	default:
		return &specpb.Spec{}
	}
}
