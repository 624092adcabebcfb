package model

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/go-version"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

// A constraintOperator is an operator for constraints and affinities. It validates the right side, and compares both sides.
type constraintOperator struct {
	// checkRTarget reports an invalid value.
	checkRTarget func(r *faultReport, operand, value string)
	// evaluate compares the resolved sides; it is only set for operators with two sides.
	evaluate func(left, right string) bool
}

// commonOperators are valid in constraints and in affinities.
var commonOperators = map[string]constraintOperator{
	"=":                          {checkHasRTarget, equalStrings},
	"==":                         {checkHasRTarget, equalStrings},
	"is":                         {checkHasRTarget, equalStrings},
	"!=":                         {checkHasRTarget, nil},
	"not":                        {checkHasRTarget, nil},
	"<":                          {checkHasRTarget, func(l, r string) bool { return compareAsNumbersOrText(l, r) < 0 }},
	"<=":                         {checkHasRTarget, func(l, r string) bool { return compareAsNumbersOrText(l, r) <= 0 }},
	">":                          {checkHasRTarget, func(l, r string) bool { return compareAsNumbersOrText(l, r) > 0 }},
	">=":                         {checkHasRTarget, func(l, r string) bool { return compareAsNumbersOrText(l, r) >= 0 }},
	api.ConstraintVersion:        {checkVersionConstraint, matchesVersion},
	api.ConstraintSemver:         {checkSemverConstraint, matchesSemver},
	api.ConstraintRegex:          {checkRegexp, matchesRegexp},
	api.ConstraintSetContains:    {checkSetContainsRTarget, setContainsAll},
	api.ConstraintSetContainsAll: {checkSetContainsRTarget, setContainsAll},
	api.ConstraintSetContainsAny: {checkSetContainsRTarget, setContainsAny},
}

// constraintOnlyOperators are valid only in constraints.
var constraintOnlyOperators = map[string]constraintOperator{
	api.ConstraintAttributeIsSet:    {checkNoRTarget, nil},
	api.ConstraintAttributeIsNotSet: {checkNoRTarget, nil},
	api.ConstraintDistinctHosts:     {func(*faultReport, string, string) {}, nil},
	api.ConstraintDistinctProperty:  {checkDistinctPropertyCount, nil},
}

func checkHasRTarget(r *faultReport, operand, rTarget string) {
	if rTarget == "" {
		r.addFault("Operator %q requires an RTarget", operand)
	}
}

func checkNoRTarget(r *faultReport, operand, rTarget string) {
	if rTarget != "" {
		r.addFault("Operator %q does not support an RTarget", operand)
	}
}

func checkVersionConstraint(r *faultReport, _, rTarget string) {
	if _, err := version.NewConstraint(rTarget); err != nil {
		r.addFault("Version constraint is invalid: %v", err)
	}
}

func checkSemverConstraint(r *faultReport, _, rTarget string) {
	if _, err := parseSemverConstraint(rTarget); err != nil {
		r.addFault("Semver constraint is invalid: %v", err)
	}
}

func checkRegexp(r *faultReport, _, rTarget string) {
	if _, err := regexp.Compile(rTarget); err != nil {
		r.addFault("Regular expression failed to compile: %v", err)
	}
}

func checkSetContainsRTarget(r *faultReport, _, rTarget string) {
	if rTarget == "" {
		r.addFault("Set contains constraint requires an RTarget")
	}
}

func checkDistinctPropertyCount(r *faultReport, _, rTarget string) {
	if rTarget == "" {
		return
	}
	count, err := strconv.ParseUint(rTarget, 10, 64)
	if err != nil {
		r.addFault("Failed to convert RTarget %q to uint64: %v", rTarget, err)
	} else if count < 1 {
		r.addFault("Distinct Property must have an allowed count of 1 or greater: %d < 1", count)
	}
}

// ConstraintHolds reports whether a canonical constraint holds on a node. resolve returns the value of a target such as
// "${attr.kernel.name}", and whether it exists. The result is false for an unknown operator, and for distinct_hosts and
// distinct_property, which compare several allocations.
func ConstraintHolds(c *api.Constraint, resolve func(target string) (string, bool)) bool {
	left, hasLeft := resolve(c.LTarget)
	right, hasRight := resolve(c.RTarget)
	switch c.Operand {
	case "!=", "not":
		return left != right || hasLeft != hasRight
	case api.ConstraintAttributeIsSet:
		return hasLeft
	case api.ConstraintAttributeIsNotSet:
		return !hasLeft
	}
	op := commonOperators[c.Operand]
	return op.evaluate != nil && hasLeft && hasRight && op.evaluate(left, right)
}

func equalStrings(left, right string) bool { return left == right }

// compareAsNumbersOrText compares two texts as integers if both are integers, as floating point
// numbers if both are numbers, and byte by byte otherwise.
func compareAsNumbersOrText(left, right string) int {
	if l, r, ok := parseBoth(left, right, func(s string) (int64, error) { return strconv.ParseInt(s, 10, 64) }); ok {
		return compareNumbers(l, r)
	}
	if l, r, ok := parseBoth(left, right, func(s string) (float64, error) { return strconv.ParseFloat(s, 64) }); ok {
		return compareNumbers(l, r)
	}
	return strings.Compare(left, right)
}

func parseBoth[T any](left, right string, parse func(string) (T, error)) (l, r T, ok bool) {
	l, errLeft := parse(left)
	r, errRight := parse(right)
	return l, r, errLeft == nil && errRight == nil
}

func compareNumbers[T int64 | float64](l, r T) int {
	switch {
	case l < r:
		return -1
	case l > r:
		return 1
	}
	return 0
}

func matchesVersion(versionText, constraint string) bool {
	v, err := version.NewVersion(versionText)
	if err != nil {
		return false
	}
	want, err := version.NewConstraint(constraint)
	return err == nil && want.Check(v)
}

func matchesRegexp(text, pattern string) bool {
	re, err := regexp.Compile(pattern)
	return err == nil && re.MatchString(text)
}

func setContainsAll(left, right string) bool {
	have := splitCommaSet(left)
	for _, want := range splitCommaSet(right) {
		if !slices.Contains(have, want) {
			return false
		}
	}
	return true
}

func setContainsAny(left, right string) bool {
	have := splitCommaSet(left)
	return slices.ContainsFunc(splitCommaSet(right), func(want string) bool { return slices.Contains(have, want) })
}

func splitCommaSet(list string) []string {
	parts := strings.Split(list, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}

func checkConstraints(r *faultReport, constraints []*api.Constraint) {
	for i, c := range constraints {
		at := r.nestedReport("constraint", strconv.Itoa(i))
		checkConstraint(at, c)
		r.addNested(at, "Constraint %d validation failed:", i+1)
	}
}

// checkTaskConstraints checks a task's constraints, which must not use operators that compare several allocations.
func checkTaskConstraints(r *faultReport, constraints []*api.Constraint) {
	checkConstraints(r, constraints)
	for i, c := range constraints {
		if isDistinctConstraint(c) {
			r.atPath("constraint", strconv.Itoa(i)).addFault("Constraint %d has disallowed Operand at task level: %s", i+1, c.Operand)
		}
	}
}

func isDistinctConstraint(c *api.Constraint) bool {
	return c.Operand == api.ConstraintDistinctHosts || c.Operand == api.ConstraintDistinctProperty
}

func checkConstraint(r *faultReport, c *api.Constraint) {
	if c.Operand == "" { // in JSON; a job file has the default "="
		r.addFault("Missing constraint operand")
		return
	}
	op, ok := commonOperators[c.Operand]
	if !ok {
		op, ok = constraintOnlyOperators[c.Operand]
	}
	if !ok {
		r.addFault("Unknown constraint type %q", c.Operand)
		return
	}
	op.checkRTarget(r, c.Operand, c.RTarget)
	if c.Operand != api.ConstraintDistinctHosts {
		checkConstraintTarget(r, c.LTarget)
	}
}

// nodeTargets are the complete references to a node; targetPrefixes start references that end with a key.
var (
	nodeTargets    = []string{"${node.unique.id}", "${node.datacenter}", "${node.unique.name}", "${node.class}", "${node.pool}"}
	targetPrefixes = []string{"${attr.", "${meta.", "${device."}
)

func checkConstraintTarget(r *faultReport, target string) {
	switch {
	case target == "":
		r.addFault("no attribute provided but is required by operator")
	case !strings.HasPrefix(target, "$"), slices.Contains(nodeTargets, target):
	case !strings.HasPrefix(target, "${"):
		r.addFault("attribute %q is missing an opening brace", target)
	case !strings.HasSuffix(target, "}"):
		r.addFault("attribute %q is missing a closing brace", target)
	case !slices.ContainsFunc(targetPrefixes, func(p string) bool { return strings.HasPrefix(target, p) }):
		r.addFault("unsupported attribute %q", target)
	}
}

func checkAffinities(r *faultReport, jobType string, affinities []*api.Affinity) {
	if jobType == api.JobTypeSystem && len(affinities) > 0 {
		r.atPath("affinity", "0").addFault("System jobs may not have an affinity block")
		return
	}
	for i, a := range affinities {
		at := r.nestedReport("affinity", strconv.Itoa(i))
		checkAffinity(at, a)
		r.addNested(at, "Affinity %d validation failed:", i+1)
	}
}

func checkAffinity(r *faultReport, a *api.Affinity) {
	if op, ok := commonOperators[a.Operand]; ok {
		op.checkRTarget(r, a.Operand, a.RTarget)
	} else {
		r.addFault("Unknown affinity operator %q", a.Operand)
	}
	if a.LTarget == "" {
		r.addFault("No LTarget provided but is required")
	}
	switch w := pointer.Value(a.Weight); {
	case w < -100 || w > 100:
		r.addFault("Affinity weight must be within the range [-100,100]")
	case w == 0:
		r.addFault("Affinity weight cannot be zero")
	}
}

func checkSpreads(r *faultReport, jobType string, spreads []*api.Spread) {
	if jobType == api.JobTypeSystem && len(spreads) > 0 {
		r.atPath("spread", "0").addFault("System jobs may not have a spread block")
		return
	}
	for i, s := range spreads {
		at := r.nestedReport("spread", strconv.Itoa(i))
		checkSpread(at, s)
		r.addNested(at, "Spread %d validation failed:", i+1)
	}
}

func checkSpread(r *faultReport, s *api.Spread) {
	if s.Attribute == "" {
		r.addFault("Missing spread attribute")
	}
	if w := pointer.Value(s.Weight); w <= 0 || w > 100 {
		r.addFault("Spread block must have a positive weight from 0 to 100")
	}
	seen := map[string]bool{}
	sum := 0
	for _, t := range s.SpreadTarget {
		if seen[t.Value] {
			r.addFault("Spread target value %q already defined", t.Value)
		}
		seen[t.Value] = true
		if t.Percent > 100 {
			r.addFault("Spread target percentage for value %q must be between 0 and 100", t.Value)
		}
		sum += int(t.Percent)
	}
	if sum > 100 {
		r.addFault("Sum of spread target percentages must not be greater than 100%%; got %d%%", sum)
	}
}
