package access

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsimple"

	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
)

// Rule policies.
const (
	denied      = "deny" // a capability, and a policy, that revokes all others
	policyRead  = "read"
	policyWrite = "write"
)

// ruleFile is the part of a policy's text the package reads.
type ruleFile struct {
	Namespaces []struct {
		Name         string   `hcl:"name,label"`
		Policy       string   `hcl:"policy,optional"`
		Capabilities []string `hcl:"capabilities,optional"`
		Others       hcl.Body `hcl:",remain"`
	} `hcl:"namespace,block"`
	Node   *simpleRule `hcl:"node,block"`
	Agent  *simpleRule `hcl:"agent,block"`
	Others hcl.Body    `hcl:",remain"`
}

type simpleRule struct {
	Policy string   `hcl:"policy,optional"`
	Others hcl.Body `hcl:",remain"`
}

// rulesOf returns a policy's rules, from its text if the servers have not parsed the text.
func rulesOf(policy *protocol.ACLPolicy) (*protocol.ACLRules, error) {
	if policy.RulesJSON != nil {
		return policy.RulesJSON, nil
	}
	fileName := "policy.hcl" // the extension selects the syntax
	if strings.HasPrefix(strings.TrimSpace(policy.Rules), "{") {
		fileName = "policy.json"
	}
	var file ruleFile
	if err := hclsimple.Decode(fileName, []byte(policy.Rules), nil, &file); err != nil {
		return nil, fmt.Errorf("policy %q: %w", policy.Name, err)
	}
	rules := &protocol.ACLRules{}
	for _, n := range file.Namespaces {
		rules.Namespaces = append(rules.Namespaces, &protocol.ACLNamespaceRule{Name: n.Name, Policy: n.Policy, Capabilities: n.Capabilities})
	}
	if file.Node != nil {
		rules.Node = &protocol.ACLRule{Policy: file.Node.Policy}
	}
	if file.Agent != nil {
		rules.Agent = &protocol.ACLRule{Policy: file.Agent.Policy}
	}
	return rules, nil
}

// capabilitiesByPolicy are the capabilities in a namespace rule's policy, as far as a node checks them.
var capabilitiesByPolicy = map[string][]string{
	policyRead:  {"read-job"},
	policyWrite: {"read-job", "submit-job", "read-logs", "read-fs", "alloc-exec", "alloc-lifecycle"},
}

// grants reports whether policies grant one of the capabilities in a namespace. A nil policy grants nothing. The most specific
// rules that match the namespace count: those with the exact name, or else those with the fewest characters in place of
// wildcards. A rule that denies wins over equally specific rules.
func grants(policies map[string]*protocol.ACLPolicy, namespace string, capabilities ...string) (bool, error) {
	best, granted, isDenied := -1, false, false // best is the distance of the rules that count; -1 before the first rule
	for _, policy := range policies {
		if policy == nil {
			continue
		}
		rules, err := rulesOf(policy)
		if err != nil {
			return false, err
		}
		for _, rule := range rules.Namespaces {
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
			granted = granted || slices.ContainsFunc(capabilities, func(capability string) bool {
				return slices.Contains(rule.Capabilities, capability) || slices.Contains(capabilitiesByPolicy[rule.Policy], capability)
			})
			isDenied = isDenied || rule.Policy == denied || slices.Contains(rule.Capabilities, denied)
		}
	}
	return granted && !isDenied, nil
}

// grantsOnAll reports whether one of the rules that rule returns for policies permits to read or, with write, to change. A rule
// that denies wins. A nil policy, and a nil rule, grant nothing.
func grantsOnAll(policies map[string]*protocol.ACLPolicy, write bool, rule func(*protocol.ACLRules) *protocol.ACLRule) (granted bool, err error) {
	for _, policy := range policies {
		if policy == nil {
			continue
		}
		rules, err := rulesOf(policy)
		if err != nil {
			return false, err
		}
		r := rule(rules)
		switch {
		case r == nil:
		case r.Policy == denied:
			return false, nil
		case r.Policy == policyWrite, r.Policy == policyRead && !write:
			granted = true
		}
	}
	return granted, nil
}

// matchNamespace reports whether a pattern with the wildcard * matches a namespace. distance is 0 for the exact name, and grows
// with the number of namespace characters wildcards match.
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
