package access

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsimple"

	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
)

const denied = "deny" // a capability, and a policy, that revokes all others

// ruleFile is the part of the text of a policy that the package reads.
type ruleFile struct {
	Namespaces []struct {
		Name         string   `hcl:"name,label"`
		Policy       string   `hcl:"policy,optional"`
		Capabilities []string `hcl:"capabilities,optional"`
		Others       hcl.Body `hcl:",remain"`
	} `hcl:"namespace,block"`
	Others hcl.Body `hcl:",remain"`
}

// rulesOf returns the rules of a policy, from its text if the servers have not parsed the text.
func rulesOf(policy *protocol.ACLPolicy) ([]*protocol.ACLNamespaceRule, error) {
	if policy.RulesJSON != nil {
		return policy.RulesJSON.Namespaces, nil
	}
	var file ruleFile
	if err := hclsimple.Decode("policy.hcl", []byte(policy.Rules), nil, &file); err != nil {
		return nil, fmt.Errorf("policy %q: %w", policy.Name, err)
	}
	var rules []*protocol.ACLNamespaceRule
	for _, n := range file.Namespaces {
		rules = append(rules, &protocol.ACLNamespaceRule{Name: n.Name, Policy: n.Policy, Capabilities: n.Capabilities})
	}
	return rules, nil
}

// grants reports whether policies grant a capability in a namespace. A nil policy grants nothing. Of the rules whose names
// match the namespace, the most specific ones count: those with the exact name, or else those with the fewest characters in
// the place of wildcards. A rule that denies wins over other rules that are as specific.
func grants(policies map[string]*protocol.ACLPolicy, namespace, capability string) (bool, error) {
	best, granted, isDenied := -1, false, false // best is the distance of the rules that count; -1 before the first rule
	for _, policy := range policies {
		if policy == nil {
			continue
		}
		rules, err := rulesOf(policy)
		if err != nil {
			return false, err
		}
		for _, rule := range rules {
			if rule == nil {
				continue
			}
			distance, matches := matchNamespace(rule.Name, namespace)
			if !matches || best >= 0 && distance > best {
				continue
			}
			if distance != best {
				best, granted, isDenied = distance, false, false
			}
			granted = granted || slices.Contains(rule.Capabilities, capability)
			isDenied = isDenied || rule.Policy == denied || slices.Contains(rule.Capabilities, denied)
		}
	}
	return granted && !isDenied, nil
}

// matchNamespace reports whether a pattern with the wildcard * matches a namespace. distance is 0 for the exact name, and
// grows with the number of characters of the namespace that wildcards stand for.
func matchNamespace(pattern, namespace string) (distance int, matches bool) {
	if pattern == namespace {
		return 0, true
	}
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return 0, false
	}
	first, last := parts[0], parts[len(parts)-1]
	rest, found := strings.CutPrefix(namespace, first)
	if !found {
		return 0, false
	}
	if rest, found = strings.CutSuffix(rest, last); !found {
		return 0, false
	}
	for _, part := range parts[1 : len(parts)-1] {
		if _, rest, found = strings.Cut(rest, part); !found {
			return 0, false
		}
	}
	return 1 + len(namespace) - (len(pattern) - (len(parts) - 1)), true
}
