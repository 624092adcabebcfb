package acl

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/hcl"
	"github.com/hashicorp/hcl/hcl/ast"
)

// Rules are one policy's rules. Their JSON form is the field RulesJSON of Nomad's API.
type Rules struct {
	Namespaces   []*NamespaceRule  `hcl:"namespace,hasKey"`
	NodePools    []*NodePoolRule   `hcl:"node_pool,hasKey"`
	Agent        *SimpleRule       `hcl:"agent"`
	Node         *SimpleRule       `hcl:"node"`
	Operator     *OperatorRule     `hcl:"operator"`
	Quota        *SimpleRule       `hcl:"quota"`
	HostVolumes  []*HostVolumeRule `hcl:"host_volume,hasKey"`
	Plugin       *SimpleRule       `hcl:"plugin"`
	Sentinel     *SimpleRule       `hcl:"-"` // always nil: Nomad Enterprise has it
	ExtraKeysHCL []string          `hcl:"-"` // always nil: a policy with such keys is refused
	Raw          string            `hcl:"-"` // the policy's text
}

// NamespaceRule is a rule for the namespaces that match Name, which can have the wildcard *.
type NamespaceRule struct {
	Name         string `hcl:",key"`
	Policy       string
	Capabilities []Capability
	Variables    *VariablesRule
}

// VariablesRule has a namespace rule's rules for variables.
type VariablesRule struct {
	Paths []*VariablePathRule `hcl:"path,hasKey"`
}

// VariablePathRule is a rule for the variables with paths that match PathSpec, which can have the wildcard *.
type VariablePathRule struct {
	PathSpec     string `hcl:",key"`
	Capabilities []Capability
}

// HostVolumeRule is a rule for the host volumes that match Name, which can have the wildcard *.
type HostVolumeRule struct {
	Name         string `hcl:",key"`
	Policy       string
	Capabilities []Capability
}

// NodePoolRule is a rule for the node pools that match Name, which can have the wildcard *.
type NodePoolRule struct {
	Name         string `hcl:",key"`
	Policy       string
	Capabilities []Capability
}

// OperatorRule is the rule for operators.
type OperatorRule struct {
	Policy       string
	Capabilities []Capability
}

// SimpleRule is a rule that has a policy only.
type SimpleRule struct{ Policy string }

// labelledBlocks has the names of a policy's blocks; the value says whether a block has a label, and can be repeated with another
// one.
var labelledBlocks = map[string]bool{
	"namespace": true, "node_pool": true, "host_volume": true,
	"agent": false, "node": false, "operator": false, "quota": false, "plugin": false,
}

// Parse reads a policy's text, in HCL or JSON, and adds the capabilities for which its policies stand. An empty text is a policy
// without rules.
func Parse(text string) (*Rules, error) {
	rules := &Rules{Raw: text}
	if text == "" {
		return rules, nil
	}
	file, err := decode(text, rules)
	if err != nil {
		return nil, policyErrorf("Failed to parse ACL Policy: %w", err)
	}
	if rules.isEmpty() {
		return nil, policyErrorf("Invalid policy: %s", text)
	}
	if extra := extraKeys(file.Node); len(extra) > 0 {
		return nil, policyErrorf("Invalid or duplicate policy keys: %s", strings.Join(extra, ", "))
	}
	if err := rules.checkAndExpand(); err != nil {
		return nil, err
	}
	return rules, nil
}

// maxNesting is how deep a policy's blocks and lists can be nested. The decoder needs stack for each level.
const maxNesting = 100

// decode decodes a text in HCL or JSON.
func decode(text string, into *Rules) (file *ast.File, err error) {
	defer func() {
		if r := recover(); r != nil { // the scanner of HCL 1 panics for some invalid texts, for example an unfinished escape in JSON
			err = fmt.Errorf("invalid text: %v", r)
		}
	}()
	depth := 0
	for _, c := range []byte(text) {
		switch c {
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		if depth > maxNesting {
			return nil, fmt.Errorf("more than %d blocks or lists are nested", maxNesting)
		}
	}
	if file, err = hcl.Parse(text); err == nil {
		err = hcl.DecodeObject(into, file)
	}
	return file, err
}

// policyErrorf is fmt.Errorf for Nomad's texts, which start with a capital.
func policyErrorf(format string, args ...any) error { return fmt.Errorf(format, args...) }

func (r *Rules) isEmpty() bool {
	return len(r.Namespaces)+len(r.NodePools)+len(r.HostVolumes) == 0 && r.Agent == nil && r.Node == nil && r.Operator == nil && r.Quota == nil && r.Plugin == nil
}

// extraKeys returns the keys at the top of a policy that no block has: unknown names, labels where no label belongs, and the name
// of a block without a label that is repeated.
func extraKeys(root ast.Node) []string {
	list, ok := root.(*ast.ObjectList)
	if !ok {
		return nil
	}
	var extra []string
	seen := make(map[string]bool)
	for _, item := range list.Items {
		var keys []string
		for _, key := range item.Keys {
			text, _ := key.Token.Value().(string)
			keys = append(keys, text)
		}
		name := strings.ToLower(keys[0]) // the decoder, too, ignores case
		hasLabel, known := labelledBlocks[name]
		switch {
		case !known || !hasLabel && seen[name]:
			extra = append(extra, keys...)
		case hasLabel:
			extra = append(extra, keys[min(2, len(keys)):]...)
		default:
			extra = append(extra, keys[1:]...)
		}
		seen[name] = true
	}
	slices.Sort(extra)
	return extra
}

// checkAndExpand checks the rules, and adds the capabilities for which policies and other capabilities stand.
func (r *Rules) checkAndExpand() error {
	for _, n := range r.Namespaces {
		if err := n.checkAndExpand(); err != nil {
			return err
		}
	}
	for _, p := range r.NodePools {
		var err error
		switch isPolicy, bad := nodePoolVocabulary.check(p.Policy, p.Capabilities); {
		case !isLabel(p.Name, "-_"):
			err = policyErrorf("Invalid node pool name '%s'", p.Name)
		case !isPolicy:
			err = policyErrorf("Invalid node pool policy '%s' for '%s'", p.Policy, p.Name)
		case bad != nil:
			err = policyErrorf("Invalid node pool capability '%s' for '%s'", *bad, p.Name)
		}
		if err != nil {
			return err
		}
		p.Capabilities = nodePoolVocabulary.expand(p.Policy, p.Capabilities)
	}
	for _, b := range []struct {
		name     string
		rule     *SimpleRule
		policies []string
	}{{"agent", r.Agent, simplePolicies}, {"node", r.Node, simplePolicies}, {"quota", r.Quota, simplePolicies}, {"plugin", r.Plugin, pluginPolicies}} {
		if b.rule != nil && !slices.Contains(b.policies, b.rule.Policy) {
			return invalid(b.name+" policy", b.rule.Policy, b.policies)
		}
	}
	if o := r.Operator; o != nil {
		isPolicy, bad := operatorVocabulary.check(o.Policy, o.Capabilities)
		if !isPolicy {
			return invalid("operator policy", o.Policy, simplePolicies)
		}
		if bad != nil {
			return policyErrorf("Invalid operator capability '%s'", *bad)
		}
		o.Capabilities = operatorVocabulary.expand(o.Policy, o.Capabilities)
	}
	for _, v := range r.HostVolumes {
		if err := checkLabelled("host volume", v.Name, "-_", v.Policy, v.Capabilities, hostVolumeVocabulary); err != nil {
			return err
		}
		v.Capabilities = hostVolumeVocabulary.expand(v.Policy, v.Capabilities)
	}
	return nil
}

func (n *NamespaceRule) checkAndExpand() error {
	if err := checkLabelled("namespace", n.Name, "-", n.Policy, n.Capabilities, namespaceVocabulary); err != nil {
		return err
	}
	n.Capabilities = namespaceVocabulary.expand(n.Policy, n.Capabilities)
	if n.Variables == nil {
		return nil
	}
	if len(n.Variables.Paths) == 0 {
		return policyErrorf("Invalid variable policy: no variable paths in namespace %s", n.Name)
	}
	for _, p := range n.Variables.Paths {
		_, bad := variableVocabulary.check("", p.Capabilities)
		var err error
		switch {
		case p.PathSpec == "":
			err = policyErrorf("Invalid missing variable path in namespace %s", n.Name)
		case strings.HasPrefix(p.PathSpec, "/"):
			err = policyErrorf("Invalid variable path %q in namespace %s: cannot start with a leading '/'`", p.PathSpec, n.Name)
		case bad != nil:
			err = policyErrorf("Invalid variable capability '%s' in namespace %s", *bad, n.Name)
		}
		if err != nil {
			return err
		}
		if slices.Contains(p.Capabilities, Read) && !slices.Contains(p.Capabilities, List) {
			p.Capabilities = append(p.Capabilities, List)
		}
	}
	return nil
}

// checkLabelled checks a rule for a namespace or a host volume.
func checkLabelled(kind, label, labelCharacters, policy string, capabilities []Capability, v vocabulary) error {
	isPolicy, bad := v.check(policy, capabilities)
	switch {
	case !isLabel(label, labelCharacters):
		return policyErrorf("Invalid %s name: %q: use 1 to %d letters, digits, and the characters %s*", kind, label, maxLabelLength, labelCharacters)
	case !isPolicy:
		return invalid(kind+" policy", policy, simplePolicies)
	case bad != nil:
		return policyErrorf("Invalid %s capability '%s': no capability of this name can be granted for %q", kind, *bad, label)
	}
	return nil
}

func invalid(what, text string, allowed []string) error {
	return policyErrorf("Invalid %s: %q: use one of %s", what, text, strings.Join(allowed, ", "))
}

// check reports whether a policy is valid, and returns the first capability that is not.
func (v vocabulary) check(policy string, capabilities []Capability) (isPolicy bool, bad *Capability) {
	_, isPolicy = v.byPolicy[policy]
	for i, c := range capabilities {
		if !slices.Contains(v.capabilities, c) {
			return isPolicy, &capabilities[i]
		}
	}
	return isPolicy, nil
}

// expand returns the capabilities, then the ones for which the policy stands, then the ones that any of them implies.
func (v vocabulary) expand(policy string, capabilities []Capability) []Capability {
	expanded := append(capabilities, v.byPolicy[policy]...)
	for _, c := range expanded[:len(expanded):len(expanded)] {
		expanded = append(expanded, v.implied[c]...)
	}
	return expanded
}

const maxLabelLength = 128

// isLabel reports whether a text can be a label: letters, digits, the wildcard *, and some other characters.
func isLabel(text, others string) bool {
	return text != "" && len(text) <= maxLabelLength && !strings.ContainsFunc(text, func(c rune) bool {
		isAlphanumeric := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		return !isAlphanumeric && c != '*' && !strings.ContainsRune(others, c)
	})
}

// ErrPermissionDenied: a token lacks a right. Nomad's servers and clients know the text.
//
//lint:ignore ST1005 the text is Nomad's
var ErrPermissionDenied = errors.New("Permission denied")
