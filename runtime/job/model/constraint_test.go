package model

import (
	"testing"

	"github.com/hashicorp/nomad/api"
)

func TestValidateConstraint(t *testing.T) {
	constraint := func(left, operand, right string) func(*jobFixture) {
		return func(f *jobFixture) { f.group.Constraints = []*api.Constraint{api.NewConstraint(left, operand, right)} }
	}
	cases := []faultCase{
		{"no operator in JSON", constraint("${attr.x}", "", "y"), wantSingleFault("Missing constraint operand")},
		{"= without value", constraint("${attr.x}", "=", ""), wantSingleFault(`Operator "=" requires an RTarget`)},
		{"< without value", constraint("${attr.x}", "<", ""), wantSingleFault(`Operator "<" requires an RTarget`)},
		{"a malformed version", constraint("${attr.x}", "version", "abc"), wantSingleFault("Version constraint is invalid: malformed constraint: abc")},
		{"a version", constraint("${attr.x}", "version", "~> 1.2, < 2"), nil},
		{"a semver with the operator of version", constraint("${attr.x}", "semver", "~> 1.0"), wantSingleFault("Semver constraint is invalid: Malformed constraint: ~> 1.0")},
		{"a semver", constraint("${attr.x}", "semver", ">= 1.0.0, < 2.0.0-beta1"), nil},
		{"a regexp that does not compile", constraint("${attr.x}", "regexp", "("), wantSingleFault("Regular expression failed to compile: error parsing regexp: missing closing ): `(`")},
		{"a set without value", constraint("${attr.x}", "set_contains", ""), wantSingleFault("Set contains constraint requires an RTarget")},
		{"any of a set without value", constraint("${attr.x}", "set_contains_any", ""), wantSingleFault("Set contains constraint requires an RTarget")},
		{"is_set with value", constraint("${attr.x}", "is_set", "y"), wantSingleFault(`Operator "is_set" does not support an RTarget`)},
		{"distinct_hosts without attribute", constraint("", "distinct_hosts", "true"), nil},
		{"distinct_property of nothing", constraint("${attr.x}", "distinct_property", "0"), wantSingleFault("Distinct Property must have an allowed count of 1 or greater: 0 < 1")},
		{"distinct_property of text", constraint("${attr.x}", "distinct_property", "x"), wantSingleFault(`Failed to convert RTarget "x" to uint64: strconv.ParseUint: parsing "x": invalid syntax`)},
		{"distinct_property by default", constraint("${meta.rack}", "distinct_property", ""), nil},
		{"an unknown operator", constraint("${attr.x}", "~", "y"), wantSingleFault(`Unknown constraint type "~"`)},
		{"an operator that is left out", constraint("${attr.x}", "=", ""), wantSingleFault(`Operator "=" requires an RTarget`)},

		{"a literal", constraint("x", "=", "y"), nil},
		{"no attribute", constraint("", "=", "y"), wantSingleFault("no attribute provided but is required by operator")},
		{"an attribute without an opening brace", constraint("$attr.x", "=", "y"), wantSingleFault(`attribute "$attr.x" is missing an opening brace`)},
		{"an attribute without a closing brace", constraint("${attr.x", "=", "y"), wantSingleFault(`attribute "${attr.x" is missing a closing brace`)},
		{"an attribute of nobody", constraint("${foo.x}", "=", "y"), wantSingleFault(`unsupported attribute "${foo.x}"`)},
		{"the region, which is only known at run time", constraint("${node.region}", "=", "y"), wantSingleFault(`unsupported attribute "${node.region}"`)},
		{"distinct_hosts of a task", func(f *jobFixture) {
			f.task.Constraints = []*api.Constraint{{Operand: "distinct_hosts"}}
		}, wantSingleFault("Constraint 1 has disallowed Operand at task level: distinct_hosts")},
		{"a constraint on the job", func(f *jobFixture) {
			f.job.Constraints = []*api.Constraint{{LTarget: "${attr.x}", RTarget: "y", Operand: "~"}}
		}, wantSingleFault(`Unknown constraint type "~"`)},
	}
	for _, target := range nodeTargets {
		cases = append(cases, faultCase{"the attribute " + target, constraint(target, "=", "y"), nil})
	}
	runFaultCases(t, cases)
}

func TestValidateAffinity(t *testing.T) {
	affinity := func(a api.Affinity) func(*jobFixture) {
		return func(f *jobFixture) { f.group.Affinities = []*api.Affinity{&a} }
	}
	runFaultCases(t, []faultCase{
		{"by default", affinity(api.Affinity{LTarget: "${attr.x}", RTarget: "y"}), nil},
		{"what Nomad makes of the weight 300", affinity(api.Affinity{LTarget: "x", RTarget: "y", Weight: new(int8(44))}), nil},
		{"no weight", affinity(api.Affinity{LTarget: "x", RTarget: "y", Weight: new(int8(0))}), wantSingleFault("Affinity weight cannot be zero")},
		{"too much weight", affinity(api.Affinity{LTarget: "x", RTarget: "y", Weight: new(int8(101))}), wantSingleFault("Affinity weight must be within the range [-100,100]")},
		{"no attribute", affinity(api.Affinity{RTarget: "y"}), wantSingleFault("No LTarget provided but is required")},
		{"distinct_hosts", affinity(api.Affinity{LTarget: "x", Operand: "distinct_hosts"}), wantSingleFault(`Unknown affinity operator "distinct_hosts"`)},
	})
}

func TestValidateSpread(t *testing.T) {
	spread := func(s api.Spread) func(*jobFixture) {
		return func(f *jobFixture) { f.group.Spreads = []*api.Spread{&s} }
	}
	target := func(value string, percent uint8) *api.SpreadTarget { return api.NewSpreadTarget(value, percent) }
	runFaultCases(t, []faultCase{
		{"no attribute", spread(api.Spread{}), wantSingleFault("Missing spread attribute")},
		{"no weight", spread(api.Spread{Attribute: "x", Weight: new(int8(0))}), wantSingleFault("Spread block must have a positive weight from 0 to 100")},
		{"too much weight", spread(api.Spread{Attribute: "x", Weight: new(int8(101))}), wantSingleFault("Spread block must have a positive weight from 0 to 100")},
		{"one target twice", spread(api.Spread{Attribute: "x", SpreadTarget: []*api.SpreadTarget{target("a", 1), target("a", 1)}}), wantSingleFault(`Spread target value "a" already defined`)},
		{"a share above everything", spread(api.Spread{Attribute: "x", SpreadTarget: []*api.SpreadTarget{target("a", 101)}}),
			[]string{`Spread target percentage for value "a" must be between 0 and 100`, "Sum of spread target percentages must not be greater than 100%; got 101%"}},
		{"shares above everything", spread(api.Spread{Attribute: "x", SpreadTarget: []*api.SpreadTarget{target("a", 60), target("b", 60)}}), wantSingleFault("Sum of spread target percentages must not be greater than 100%; got 120%")},
	})
}

func TestConstraintHolds(t *testing.T) {
	node := map[string]string{"set": "a, b,c", "v": "1.5.0", "beta": "2.0.0-beta1", "n": "10", "f": "1.5", "name": "linux"}
	resolve := func(target string) (string, bool) {
		if len(target) > 0 && target[0] == '$' {
			value, ok := node[target[1:]]
			return value, ok
		}
		return target, true
	}
	for _, c := range []struct {
		left, operand, right string
		want                 bool
	}{
		{"$name", "=", "linux", true},
		{"$name", "==", "linux", true},
		{"$name", "is", "windows", false},
		{"$none", "=", "", false},
		{"$name", "=", "$name", true},
		{"$name", "!=", "linux", false},
		{"$name", "not", "windows", true},
		{"$none", "!=", "x", true},
		{"$none", "!=", "", true},
		{"$n", "<", "9", false}, // compared as integers; as text the constraint would hold
		{"$n", "<=", "10", true},
		{"$n", ">", "9.5", true}, // compared as floating point numbers
		{"$f", ">=", "1.50", true},
		{"$name", ">", "darwin", true}, // compared as text
		{"$none", "<", "1", false},
		{"$v", "version", ">= 1.0, < 2", true},
		{"$v", "version", "~> 1.4", true},
		{"$v", "version", "~> 1.4.0", false},
		{"$beta", "version", ">= 1.0", false}, // a prerelease satisfies only a constraint with a prerelease
		{"$name", "version", ">= 1.0", false},
		{"$beta", "semver", ">= 1.0.0", true},
		{"$beta", "semver", ">= 2.0.0", false},
		{"$v", "semver", "= 1.5.0", true},
		{"$v", "semver", "!= 1.5.0", false},
		{"$v", "semver", "> 1.4.9, < 1.5.1", true},
		{"$v", "semver", "~> 1.0", false},
		{"$name", "semver", "> 1.0.0", false},
		{"$name", "regexp", "nu", true},
		{"$name", "regexp", "^nu", false},
		{"$name", "regexp", "(", false},
		{"$set", "set_contains", "c,a", true},
		{"$set", "set_contains_all", "a, d", false},
		{"$set", "set_contains_any", "d, b", true},
		{"$set", "set_contains_any", "d", false},
		{"$name", "is_set", "", true},
		{"$none", "is_set", "", false},
		{"$none", "is_not_set", "", true},
		{"$name", "is_not_set", "", false},
		{"$name", "~", "linux", false},
		{"$name", "distinct_hosts", "", false},
	} {
		if got := ConstraintHolds(api.NewConstraint(c.left, c.operand, c.right), resolve); got != c.want {
			t.Errorf("%s %s %s: %v, want %v", c.left, c.operand, c.right, got, c.want)
		}
	}
}
