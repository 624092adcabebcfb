package model

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/hashicorp/go-version"
)

// A semverConstraint is one comparison of the operator semver: strict ordering of versions,
// prereleases included, without the "~>" of the operator version.
type semverConstraint struct {
	operator string
	version  *version.Version
}

var semverPattern = regexp.MustCompile(`^\s*(=|!=|<|<=|>|>=|)\s*([^\s<>=!~]+)\s*$`)

func parseSemverConstraint(text string) ([]semverConstraint, error) {
	var all []semverConstraint
	for _, part := range strings.Split(text, ",") {
		m := semverPattern.FindStringSubmatch(part)
		if m == nil {
			//lint:ignore ST1005 the text is Nomad's
			return nil, fmt.Errorf("Malformed constraint: %s", part)
		}
		v, err := version.NewSemver(m[2])
		if err != nil {
			return nil, err
		}
		all = append(all, semverConstraint{m[1], v})
	}
	return all, nil
}

func matchesSemver(left, right string) bool {
	v, err := version.NewSemver(left)
	if err != nil {
		return false
	}
	all, err := parseSemverConstraint(right)
	if err != nil {
		return false
	}
	for _, c := range all {
		if !c.isSatisfiedBy(v) {
			return false
		}
	}
	return true
}

func (c semverConstraint) isSatisfiedBy(v *version.Version) bool {
	switch order := v.Compare(c.version); c.operator {
	case "", "=":
		return order == 0
	case "!=":
		return order != 0
	case "<":
		return order < 0
	case "<=":
		return order <= 0
	case ">":
		return order > 0
	default:
		return order >= 0
	}
}
