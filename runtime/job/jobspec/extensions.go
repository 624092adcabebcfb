package jobspec

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/gohcl"
	"github.com/hashicorp/nomad/api"
)

// typesWithMapAttributes are the types whose meta and env may be attributes.
var typesWithMapAttributes = map[reflect.Type]bool{
	reflect.TypeFor[api.Job]():       true,
	reflect.TypeFor[api.TaskGroup](): true,
	reflect.TypeFor[api.Task]():      true,
}

// typeExtensions has the extension of each type that needs one.
var typeExtensions map[reflect.Type]structDecodeExtension

func init() { // typeExtensions is set in init to avoid an initialization cycle with the decoder
	vault, secret := newExtensionBlock[api.Vault]("vault"), newExtensionBlock[api.Secret]("secret", "name")
	typeExtensions = map[reflect.Type]structDecodeExtension{
		reflect.TypeFor[api.Job](): {
			extraBlocks: []extensionBlock{newExtensionBlock[api.Task]("task", "name"), vault, secret},
			afterDecode: expandJobTasksVaultAndSecrets,
		},
		reflect.TypeFor[api.TaskGroup](): {
			extraBlocks: []extensionBlock{vault, secret},
			afterDecode: copyGroupVaultAndSecrets,
		},
		reflect.TypeFor[api.Task](): {
			extraBlocks: []extensionBlock{newExtensionBlock[api.ScalingPolicy]("scaling", "name")},
			afterDecode: decodeTaskScalingAndIdentity,
		},
		reflect.TypeFor[api.Constraint](): {
			extraAttributes:                optionalAttributes(constraintShorthands),
			attributesDecodedByAfterDecode: []string{"attribute", "operator", "value"},
			beforeDecode:                   func(target any) { target.(*api.Constraint).Operand = "=" },
			afterDecode:                    decodeConstraintAndShorthands,
		},
		reflect.TypeFor[api.Affinity](): {
			extraAttributes:                optionalAttributes(affinityShorthands),
			attributesDecodedByAfterDecode: []string{"attribute", "operator", "value", "weight"},
			beforeDecode:                   func(target any) { target.(*api.Affinity).Operand = "=" },
			afterDecode:                    decodeAffinityAndShorthands,
		},
		reflect.TypeFor[api.NetworkResource](): {afterDecode: splitStaticAndDynamicPorts},
		reflect.TypeFor[api.PeriodicConfig]():  {afterDecode: setPeriodicDefaults},
		reflect.TypeFor[api.Template]():        {afterDecode: setTemplateDefaults},
		reflect.TypeFor[api.ChangeScript]():    {afterDecode: setChangeScriptDefaults},
		reflect.TypeFor[api.Vault]():           {afterDecode: setVaultDefaults},
		reflect.TypeFor[api.ScalingPolicy]():   {afterDecode: completeAndCheckGroupScaling},
	}
}

// newExtensionBlock returns the extensionBlock of a block whose content is decoded into a T.
func newExtensionBlock[T any](name string, labels ...string) extensionBlock {
	return extensionBlock{hcl.BlockHeaderSchema{Type: name, LabelNames: labels}, reflect.TypeFor[T]()}
}

func optionalAttributes(names []string) []hcl.AttributeSchema {
	out := make([]hcl.AttributeSchema, len(names))
	for i, name := range names {
		out[i].Name = name
	}
	return out
}

func setDefault[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}

// These shorthands of a constraint or affinity set the operator and the value. Nomad
// has the last four of a constraint in its schema and ignores them.
var (
	constraintShorthands = []string{"version", "semver", "regexp", "set_contains", "distinct_hosts", "distinct_property",
		"set_contains_any", "set_contains_all", "is_set", "is_not_set"}
	affinityShorthands = []string{"version", "semver", "regexp", "set_contains", "set_contains_any", "set_contains_all"}
)

func decodeConstraintAndShorthands(d *decoder, content *hcl.BodyContent, target any, _ []string) hcl.Diagnostics {
	c := target.(*api.Constraint)
	diags := d.decodeStringAttributes(content, map[string]*string{"attribute": &c.LTarget, "operator": &c.Operand, "value": &c.RTarget})
	for _, name := range constraintShorthands {
		attr := content.Attributes[name]
		if attr == nil {
			continue
		}
		switch name {
		case "distinct_hosts":
			var on bool
			diags = append(diags, gohcl.DecodeExpression(attr.Expr, d.evalContext, &on)...)
			c.Operand, c.RTarget = name, strconv.FormatBool(on)
		case "distinct_property":
			text, moreDiags := d.decodeString(attr.Expr)
			diags = append(diags, moreDiags...)
			c.Operand, c.LTarget = name, text
		case api.ConstraintAttributeIsSet, api.ConstraintAttributeIsNotSet:
			diags = append(diags, d.decodeIsSetConstraint(name, attr, c)...)
		default:
			text, moreDiags := d.decodeString(attr.Expr)
			diags = append(diags, moreDiags...)
			c.Operand, c.RTarget = name, text
		}
	}
	return diags
}

// decodeIsSetConstraint decodes is_set and is_not_set. Their value is the name of the attribute,
// or a boolean, of which false inverts the operator.
func (d *decoder) decodeIsSetConstraint(name string, attr *hcl.Attribute, c *api.Constraint) hcl.Diagnostics {
	text, diags := d.decodeString(attr.Expr)
	on, err := strconv.ParseBool(text)
	if err != nil {
		c.LTarget, on = text, true
	}
	c.Operand = api.ConstraintAttributeIsNotSet
	if on == (name == api.ConstraintAttributeIsSet) {
		c.Operand = api.ConstraintAttributeIsSet
	}
	return diags
}

// decodeStringAttributes decodes the texts of a constraint or affinity. A null text is not set.
func (d *decoder) decodeStringAttributes(content *hcl.BodyContent, targetByAttribute map[string]*string) hcl.Diagnostics {
	var diags hcl.Diagnostics
	for _, name := range slices.Sorted(maps.Keys(targetByAttribute)) {
		attr := content.Attributes[name]
		if attr == nil {
			continue
		}
		var stringValue *string
		diags = append(diags, gohcl.DecodeExpression(attr.Expr, d.evalContext, &stringValue)...)
		if stringValue != nil {
			*targetByAttribute[name] = *stringValue
		}
	}
	return diags
}

func decodeAffinityAndShorthands(d *decoder, content *hcl.BodyContent, target any, _ []string) hcl.Diagnostics {
	a := target.(*api.Affinity)
	diags := d.decodeStringAttributes(content, map[string]*string{"attribute": &a.LTarget, "operator": &a.Operand, "value": &a.RTarget})
	for _, name := range affinityShorthands {
		if attr := content.Attributes[name]; attr != nil {
			text, moreDiags := d.decodeString(attr.Expr)
			diags = append(diags, moreDiags...)
			a.Operand, a.RTarget = name, text
		}
	}
	if attr := content.Attributes["weight"]; attr != nil {
		diags = append(diags, d.decodeAffinityWeight(attr, a)...)
	}
	return diags
}

// decodeAffinityWeight rejects a weight that Nomad would truncate to eight bits.
func (d *decoder) decodeAffinityWeight(attr *hcl.Attribute, a *api.Affinity) hcl.Diagnostics {
	var weightValue *int64
	diags := gohcl.DecodeExpression(attr.Expr, d.evalContext, &weightValue)
	if diags.HasErrors() || weightValue == nil {
		return diags
	}
	if *weightValue < -100 || *weightValue > 100 {
		return append(diags, errorAt("Weight out of range",
			fmt.Sprintf("The weight of an affinity must be between -100 and 100, not %d.", *weightValue), attr.Expr.Range()))
	}
	weight := int8(*weightValue)
	a.Weight = &weight
	return diags
}

// splitStaticAndDynamicPorts sorts ports into static and dynamic ports. As in Nomad, any port block replaces
// the literal reserved_ports.
func splitStaticAndDynamicPorts(_ *decoder, content *hcl.BodyContent, target any, _ []string) hcl.Diagnostics {
	n := target.(*api.NetworkResource)
	if len(n.DynamicPorts) == 0 {
		return nil
	}
	var diags hcl.Diagnostics
	for _, block := range content.Blocks.OfType("reserved_ports") {
		diags = append(diags, &hcl.Diagnostic{
			Severity: hcl.DiagWarning,
			Summary:  "Ignored block",
			Detail:   "Nomad ignores reserved_ports where there is a port block. Write a port block with static instead.",
			Subject:  block.DefRange.Ptr(),
		})
	}
	var reservedPorts, dynamicPorts []api.Port
	for _, port := range n.DynamicPorts {
		if port.Value > 0 {
			reservedPorts = append(reservedPorts, port)
		} else {
			dynamicPorts = append(dynamicPorts, port)
		}
	}
	n.ReservedPorts, n.DynamicPorts = reservedPorts, dynamicPorts
	return diags
}

func setPeriodicDefaults(_ *decoder, _ *hcl.BodyContent, target any, _ []string) hcl.Diagnostics {
	p := target.(*api.PeriodicConfig)
	if p.Spec != nil || p.Specs != nil {
		setDefault(&p.SpecType, api.PeriodicSpecCron)
	}
	return nil
}

func setTemplateDefaults(_ *decoder, _ *hcl.BodyContent, target any, _ []string) hcl.Diagnostics {
	t := target.(*api.Template)
	setDefault(&t.ChangeMode, "restart")
	setDefault(&t.Splay, 5*time.Second)
	setDefault(&t.Perms, "0644")
	setDefault(&t.ErrMissingKey, false)
	return nil
}

func setChangeScriptDefaults(_ *decoder, _ *hcl.BodyContent, target any, _ []string) hcl.Diagnostics {
	c := target.(*api.ChangeScript)
	if c.Args == nil {
		c.Args = []string{}
	}
	setDefault(&c.Timeout, 5*time.Second)
	setDefault(&c.FailOnError, false)
	setDefault(&c.RunOnFirstRender, false)
	return nil
}

func setVaultDefaults(_ *decoder, _ *hcl.BodyContent, target any, _ []string) hcl.Diagnostics {
	v := target.(*api.Vault)
	setDefault(&v.Env, true)
	setDefault(&v.DisableFile, false)
	setDefault(&v.ChangeMode, "restart")
	return nil
}

const horizontalScalingPolicy = "horizontal"

// completeAndCheckGroupScaling completes the policy of a group. decodeTaskScaling completes the policy of a task,
// because it has the label.
func completeAndCheckGroupScaling(d *decoder, content *hcl.BodyContent, target any, path []string) hcl.Diagnostics {
	s := target.(*api.ScalingPolicy)
	if path[len(path)-1] != "scaling" {
		return nil
	}
	var diags hcl.Diagnostics
	if content.Attributes["max"] == nil {
		diags = append(diags, errorAt("Missing required argument",
			`The argument "max" is required, but no definition was found.`, content.MissingItemRange))
	}
	if s.Type == "" {
		s.Type = horizontalScalingPolicy
	}
	if s.Type != horizontalScalingPolicy {
		diags = append(diags, errorAt("Invalid group scaling type",
			fmt.Sprintf("task group scaling policy had invalid type: %q", s.Type), content.Attributes["type"].Range))
	}
	return diags
}

// decodeTaskScaling decodes scaling "cpu" { } and scaling "mem" { } of a task.
func (d *decoder) decodeTaskScaling(blocks hcl.Blocks, path []string) ([]*api.ScalingPolicy, hcl.Diagnostics) {
	var policies []*api.ScalingPolicy
	var diags hcl.Diagnostics
	seen := map[string]*hcl.Block{}
	for _, block := range blocks {
		name := strings.ToLower(block.Labels[0])
		if name != "cpu" && name != "mem" {
			diags = append(diags, errorAt("Invalid scaling policy name", `scaling policy name must be "cpu" or "mem"`, block.LabelRanges[0]))
			continue
		}
		if first := seen[name]; first != nil {
			diags = append(diags, errorAt(fmt.Sprintf("Duplicate scaling %q block", name),
				fmt.Sprintf("Only one scaling %q block is allowed. Another was defined at %s.", name, first.DefRange), block.DefRange))
			continue
		}
		seen[name] = block
		policy := &api.ScalingPolicy{}
		at := joinPath(path, "scaling", block.Labels[0])
		d.ranges.addRangeIfAbsent(at, block.DefRange)
		diags = append(diags, d.decodeStruct(block.Body, reflect.ValueOf(policy).Elem(), at)...)
		kind := "vertical_" + name
		if policy.Type != "" && policy.Type != kind {
			diags = append(diags, errorAt("Invalid scaling policy type",
				fmt.Sprintf("Invalid policy type, expected %q but found %q", policy.Type, kind), block.DefRange))
		}
		policy.Type = kind
		policies = append(policies, policy)
	}
	return policies, diags
}
