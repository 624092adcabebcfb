package basewire

import (
	"fmt"

	"github.com/nomad-lite/nomad-lite/plugins/proto/structspb"
)

// AttributeProto returns the message of an attribute. The value is a bool, int, int64, float64
// or string; any other type is an error.
func AttributeProto(value any, unit string) (*structspb.Attribute, error) {
	p := &structspb.Attribute{Unit: unit}
	switch v := value.(type) {
	case bool:
		p.Value = &structspb.Attribute_BoolVal{BoolVal: v}
	case int64:
		p.Value = &structspb.Attribute_IntVal{IntVal: v}
	case int:
		p.Value = &structspb.Attribute_IntVal{IntVal: int64(v)}
	case float64:
		p.Value = &structspb.Attribute_FloatVal{FloatVal: v}
	case string:
		p.Value = &structspb.Attribute_StringVal{StringVal: v}
	default:
		return nil, fmt.Errorf("a value of type %T is neither bool, int64, float64 nor string", value)
	}
	return p, nil
}

// AttributeValue returns the value of an attribute, a bool, int64, float64 or string. It returns
// nil if the message has no value.
func AttributeValue(p *structspb.Attribute) any {
	switch v := p.GetValue().(type) {
	case *structspb.Attribute_BoolVal:
		return v.BoolVal
	case *structspb.Attribute_IntVal:
		return v.IntVal
	case *structspb.Attribute_FloatVal:
		return v.FloatVal
	case *structspb.Attribute_StringVal:
		return v.StringVal
	default:
		return nil
	}
}
