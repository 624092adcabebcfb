package model

import (
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/hashicorp/go-version"
)

// A semverComparison is one comparison in the operator semver: strict version ordering, prereleases included, without the "~>"
// known from the operator version.
type semverComparison struct {
	operator string
	version  *version.Version
}

var semverPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^\s*(=|!=|<|<=|>|>=|)\s*([^\s<>=!~]+)\s*$`) })

func parseSemverConstraint(text string) ([]semverComparison, error) {
	var all []semverComparison
	for _, part := range strings.Split(text, ",") {
		m := semverPattern().FindStringSubmatch(part)
		if m == nil {
			//lint:ignore ST1005 the text is Nomad's
			return nil, fmt.Errorf("Malformed constraint: %s", part)
		}
		v, err := version.NewSemver(m[2])
		if err != nil {
			return nil, err
		}
		all = append(all, semverComparison{m[1], v})
	}
	return all, nil
}

func matchesSemver(versionText, constraint string) bool {
	v, err := version.NewSemver(versionText)
	if err != nil {
		return false
	}
	all, err := parseSemverConstraint(constraint)
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

func (c semverComparison) isSatisfiedBy(v *version.Version) bool {
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
