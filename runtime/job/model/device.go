package model

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/plugins/device"
)

// A node attribute named prefix, plugin name, FailureSuffix explains why the plugin reports no healthy devices. It exists only
// while this holds.
const (
	DeviceFailurePrefix = "plugins.device."  // a device plugin has no process, or could not look for devices
	LaunchFailurePrefix = "plugins.unknown." // a plugin could not be launched, so it is unknown whether it serves devices
	FailureSuffix       = ".failure"
)

// DeviceFailures returns a text for each of a node's plugins that may serve devices and reports no healthy ones, sorted.
func DeviceFailures(node *NodeFacts) (texts []string) {
	for _, key := range slices.Sorted(maps.Keys(node.Attributes)) {
		name, ok := strings.CutSuffix(key, FailureSuffix)
		if !ok {
			continue
		}
		if device, ok := strings.CutPrefix(name, DeviceFailurePrefix); ok {
			texts = append(texts, fmt.Sprintf("device plugin %q: %s", device, node.Attributes[key]))
		} else if strings.HasPrefix(name, LaunchFailurePrefix) {
			texts = append(texts, node.Attributes[key]) // the reason names the plugin
		}
	}
	return texts
}

// DeviceInstanceName returns a device's name in messages: vendor/type/name[id].
func DeviceInstanceName(vendor, deviceType, name, id string) string {
	return fmt.Sprintf("%s/%s/%s[%s]", vendor, deviceType, name, id)
}

// MatchesDevice reports whether a device group has the type, vendor and name requested by a device block: type, vendor/type or
// vendor/type/name.
func MatchesDevice(request string, group *api.NodeDeviceResource) bool {
	parts := strings.Split(request, "/")
	switch len(parts) {
	case 1:
		return parts[0] == group.Type
	case 2:
		return parts[0] == group.Vendor && parts[1] == group.Type
	case 3:
		return parts[0] == group.Vendor && parts[1] == group.Type && parts[2] == group.Name
	}
	return false
}

// Targets that describe the group, in a device block's constraints and affinities.
const (
	deviceAttrPrefix = "${device.attr."
	deviceIDsTarget  = "${device.ids}"
)

// DeviceGroupSatisfiesConstraint reports whether a device block's canonical constraint holds for a device group on a node. The
// target ${device.ids} has all instances' IDs, see DeviceInstanceSatisfiesConstraint. Other targets that are not device
// properties are resolved against the node.
func DeviceGroupSatisfiesConstraint(c *api.Constraint, group *api.NodeDeviceResource, node *NodeFacts) bool {
	if c.LTarget == deviceIDsTarget && c.Operand != api.ConstraintSetContains && c.Operand != api.ConstraintSetContainsAll {
		return slices.ContainsFunc(group.Instances, func(d *api.NodeDevice) bool { return DeviceInstanceSatisfiesConstraint(c, d, node) })
	}
	left := resolveDeviceTarget(c.LTarget, group, node)
	right := resolveDeviceTarget(c.RTarget, group, node)
	switch c.Operand {
	case api.ConstraintAttributeIsSet:
		return left != nil
	case api.ConstraintAttributeIsNotSet:
		return left == nil
	case "!=", "not":
		return (left == nil) != (right == nil) || left != nil && !equalAttributes(left, right)
	}
	return left != nil && right != nil && attributesSatisfyOperator(c.Operand, left, right)
}

// DeviceInstanceSatisfiesConstraint reports whether an instance may be used under a constraint that holds for its group. Only a
// constraint on ${device.ids} distinguishes instances: for set_contains and its variants an instance must be in the list, for
// other operators the constraint must hold for the instance's ID.
func DeviceInstanceSatisfiesConstraint(c *api.Constraint, d *api.NodeDevice, node *NodeFacts) bool {
	if c.LTarget != deviceIDsTarget {
		return true
	}
	value, ok := node.ResolveConstraintTarget(c.RTarget)
	switch c.Operand {
	case api.ConstraintSetContains, api.ConstraintSetContainsAll, api.ConstraintSetContainsAny:
		return ok && slices.Contains(splitCommaSet(value), d.ID)
	}
	return ConstraintHolds(&api.Constraint{LTarget: d.ID, Operand: c.Operand, RTarget: value}, func(text string) (string, bool) { return text, true })
}

// DeviceAffinityScore returns how well a device group meets a device block's affinities: the total weight of the satisfied
// affinities, divided by the sum of all absolute weights. Without affinities it is 0.
func DeviceAffinityScore(affinities []*api.Affinity, group *api.NodeDeviceResource, node *NodeFacts) float64 {
	var met, total float64
	for _, a := range affinities {
		weight := float64(pointer.Value(a.Weight))
		total += math.Abs(weight)
		if DeviceGroupSatisfiesConstraint(&api.Constraint{LTarget: a.LTarget, RTarget: a.RTarget, Operand: a.Operand}, group, node) {
			met += weight
		}
	}
	if total == 0 {
		return 0
	}
	return met / total
}

// resolveDeviceTarget returns a target's value, or nil if it does not exist.
func resolveDeviceTarget(target string, group *api.NodeDeviceResource, node *NodeFacts) *api.Attribute {
	switch target {
	case "${device.vendor}":
		return &api.Attribute{StringVal: &group.Vendor}
	case "${device.type}":
		return &api.Attribute{StringVal: &group.Type}
	case "${device.model}":
		return &api.Attribute{StringVal: &group.Name}
	case deviceIDsTarget:
		ids := make([]string, len(group.Instances))
		for i, d := range group.Instances {
			ids[i] = d.ID
		}
		return &api.Attribute{StringVal: new(strings.Join(ids, ","))}
	}
	if name, ok := strings.CutPrefix(target, deviceAttrPrefix); ok {
		return group.Attributes[strings.TrimSuffix(name, "}")]
	}
	if text, ok := node.ResolveConstraintTarget(target); ok {
		return &api.Attribute{StringVal: &text}
	}
	return nil
}

// attributesSatisfyOperator evaluates an operator that needs both sides. Operators for versions, patterns and sets compare the
// sides as texts.
func attributesSatisfyOperator(operand string, left, right *api.Attribute) bool {
	switch operand {
	case "=", "==", "is":
		return equalAttributes(left, right)
	case "<", "<=", ">", ">=":
		order, ok := orderAttributes(left, right)
		switch {
		case !ok:
			return false
		case operand == "<":
			return order < 0
		case operand == "<=":
			return order <= 0
		case operand == ">":
			return order > 0
		}
		return order >= 0
	}
	op := commonOperators[operand]
	return op.evaluate != nil && op.evaluate(attributeText(left), attributeText(right))
}

func equalAttributes(left, right *api.Attribute) bool {
	if left == nil || right == nil {
		return left == right
	}
	if order, ok := orderAttributes(left, right); ok {
		return order == 0
	}
	l, okLeft := boolAttribute(left)
	r, okRight := boolAttribute(right)
	return okLeft && okRight && l == r
}

// orderAttributes compares two quantities, or two texts. If one side is a quantity and the other a text, the text is parsed as a
// quantity. It returns false if the sides are not comparable: their units measure different things, only one has a unit, or one
// is a bool.
func orderAttributes(left, right *api.Attribute) (order int, ok bool) {
	if left.StringVal != nil && right.StringVal != nil {
		return compareAsNumbersOrText(*left.StringVal, *right.StringVal), true
	}
	l, okLeft := quantityOf(left)
	r, okRight := quantityOf(right)
	if !okLeft || !okRight || l.baseUnit != r.baseUnit {
		return 0, false
	}
	if l.isIntExact && r.isIntExact {
		return compareNumbers(l.intValue, r.intValue), true
	}
	return compareNumbers(l.floatValue, r.floatValue), true
}

// IncomparableUnits returns the reason why a device block's constraint cannot hold for any value of a group, or "": both sides
// are numbers, and their units measure different things, or only one has a unit.
func IncomparableUnits(c *api.Constraint, group *api.NodeDeviceResource, node *NodeFacts) string {
	left, right := resolveDeviceTarget(c.LTarget, group, node), resolveDeviceTarget(c.RTarget, group, node)
	if left == nil || right == nil || left.StringVal != nil && right.StringVal != nil {
		return ""
	}
	l, okLeft := quantityOf(left)
	r, okRight := quantityOf(right)
	if !okLeft || !okRight || l.baseUnit == r.baseUnit {
		return ""
	}
	return fmt.Sprintf("a number %s is not comparable with one %s", unitText(left), unitText(right))
}

// unitText returns a quantity's unit, for a message.
func unitText(a *api.Attribute) string {
	unit := a.Unit
	if a.StringVal != nil {
		parsed, _ := device.ParseAttribute(*a.StringVal) // the text is a quantity
		unit = parsed.Unit
	}
	if unit == "" {
		return "without a unit"
	}
	return fmt.Sprintf("in %q", unit)
}

// quantity is a number in its base unit.
type quantity struct {
	floatValue float64
	isIntExact bool // intValue is exact
	intValue   int64
	baseUnit   string // "" for a number without a unit
}

func quantityOf(a *api.Attribute) (quantity, bool) {
	switch {
	case a.IntVal != nil:
		return toBaseUnit(quantity{floatValue: float64(*a.IntVal), isIntExact: true, intValue: *a.IntVal}, a.Unit)
	case a.FloatVal != nil:
		return toBaseUnit(quantity{floatValue: *a.FloatVal}, a.Unit)
	case a.StringVal != nil:
		return parseQuantity(*a.StringVal)
	}
	return quantity{}, false
}

func toBaseUnit(q quantity, unit string) (quantity, bool) {
	if unit == "" {
		return q, true
	}
	u, ok := device.LookupUnit(unit)
	if !ok {
		return quantity{}, false
	}
	product := q.intValue * u.Multiplier
	q.isIntExact = q.isIntExact && product/u.Multiplier == q.intValue // false after an overflow
	q.intValue = product
	q.floatValue *= float64(u.Multiplier)
	q.baseUnit = u.Base
	return q, true
}

// parseQuantity parses a number with an optional unit, like "2GiB" or "1.5 GHz".
func parseQuantity(text string) (quantity, bool) {
	a, err := device.ParseAttribute(text)
	if err != nil {
		return quantity{}, false
	}
	switch v := a.Value.(type) {
	case int64:
		return toBaseUnit(quantity{floatValue: float64(v), isIntExact: true, intValue: v}, a.Unit)
	case float64:
		return toBaseUnit(quantity{floatValue: v}, a.Unit)
	}
	return quantity{}, false
}

func boolAttribute(a *api.Attribute) (value, ok bool) {
	switch {
	case a.BoolVal != nil:
		return *a.BoolVal, true
	case a.StringVal != nil:
		value, err := strconv.ParseBool(*a.StringVal)
		return value, err == nil
	}
	return false, false
}

// attributeText returns a value as text, a number with its unit.
func attributeText(a *api.Attribute) string {
	switch {
	case a.IntVal != nil:
		return strconv.FormatInt(*a.IntVal, 10) + a.Unit
	case a.FloatVal != nil:
		return strconv.FormatFloat(*a.FloatVal, 'g', -1, 64) + a.Unit
	case a.BoolVal != nil:
		return strconv.FormatBool(*a.BoolVal)
	}
	return pointer.Value(a.StringVal)
}
