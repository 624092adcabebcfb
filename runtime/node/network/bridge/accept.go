package bridge

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// The table of the bridge cannot accept a packet that another table drops. Docker, and other users of
// iptables, drop by the policy of the chain FORWARD. So accepting rules are added there, in the
// form in which iptables-nft writes and lists them: "-i BRIDGE -j ACCEPT" and "-o BRIDGE -j ACCEPT".

// acceptFamilies are the families of iptables and ip6tables.
var acceptFamilies = []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6}

// dockerUserChain is the chain that Docker has reserved for rules of others. Docker keeps its rules.
const dockerUserChain, forwardChain = "DOCKER-USER", "FORWARD"

// ensureAccepted adds the accepting rules if the machine has a chain of iptables that would drop forwarded
// packets.
func (b *Bridge) ensureAccepted() error {
	for _, family := range acceptFamilies {
		if err := b.ensureAcceptedIn(&nftables.Table{Name: "filter", Family: family}); err != nil {
			return fmt.Errorf("accept forwarded packets in the table filter of iptables: %w", err)
		}
	}
	return nil
}

func (b *Bridge) ensureAcceptedIn(table *nftables.Table) error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	name, err := acceptingChain(c, table)
	if name == "" || err != nil {
		return err
	}
	chain := &nftables.Chain{Name: name, Table: table}
	existing, err := c.GetRules(table, chain)
	if err != nil {
		return fmt.Errorf("list chain %s: %w", name, err)
	}
	for _, key := range []expr.MetaKey{expr.MetaKeyOIFNAME, expr.MetaKeyIIFNAME} {
		accept := acceptRule(key, b.config.Name)
		if findRule(existing, accept) == nil {
			c.InsertRule(&nftables.Rule{Table: table, Chain: chain, Exprs: accept})
		}
	}
	return c.Flush()
}

// acceptingChain returns the name of the chain for accepting rules, "" if none is needed.
func acceptingChain(c *nftables.Conn, table *nftables.Table) (string, error) {
	chains, err := chainsOf(c, table)
	if err != nil {
		return "", err
	}
	name := ""
	for _, chain := range chains {
		switch {
		case chain.Name == dockerUserChain:
			return dockerUserChain, nil
		case chain.Name == forwardChain && chain.Policy != nil && *chain.Policy == nftables.ChainPolicyDrop:
			name = forwardChain
		}
	}
	return name, nil
}

// chainsOf returns the chains of a table that can have accepting rules.
func chainsOf(c *nftables.Conn, table *nftables.Table) ([]*nftables.Chain, error) {
	all, err := c.ListChainsOfTableFamily(table.Family)
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	var chains []*nftables.Chain
	for _, chain := range all {
		if chain.Table.Name == table.Name && (chain.Name == dockerUserChain || chain.Name == forwardChain) {
			chains = append(chains, chain)
		}
	}
	return chains, nil
}

// acceptRule returns the rule that iptables-nft writes for an interface.
func acceptRule(key expr.MetaKey, name string) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: key, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: append([]byte(name), 0)},
		&expr.Counter{},
		&expr.Verdict{Kind: expr.VerdictAccept},
	}
}

// findRule returns the rule with the expressions, apart from counters; nil if there is none.
func findRule(rules []*nftables.Rule, want []expr.Any) *nftables.Rule {
	for _, r := range rules {
		if sameRule(r.Exprs, want) {
			return r
		}
	}
	return nil
}

func sameRule(a, b []expr.Any) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		switch x := a[i].(type) {
		case *expr.Meta:
			y, ok := b[i].(*expr.Meta)
			if !ok || x.Key != y.Key {
				return false
			}
		case *expr.Cmp:
			y, ok := b[i].(*expr.Cmp)
			if !ok || x.Op != y.Op || !bytes.Equal(x.Data, y.Data) {
				return false
			}
		case *expr.Counter:
			if _, ok := b[i].(*expr.Counter); !ok {
				return false
			}
		case *expr.Verdict:
			y, ok := b[i].(*expr.Verdict)
			if !ok || x.Kind != y.Kind {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// removeAccepts removes the accepting rules of a bridge.
func removeAccepts(bridge string) error {
	var errs []error
	for _, family := range acceptFamilies {
		if err := removeAcceptsOf(&nftables.Table{Name: "filter", Family: family}, bridge); err != nil {
			errs = append(errs, fmt.Errorf("remove rules of %s from the table filter of iptables: %w", bridge, err))
		}
	}
	return errors.Join(errs...)
}

func removeAcceptsOf(table *nftables.Table, bridge string) error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	chains, err := chainsOf(c, table)
	if err != nil {
		return err
	}
	for _, chain := range chains {
		existing, err := c.GetRules(table, chain)
		if err != nil {
			return fmt.Errorf("list chain %s: %w", chain.Name, err)
		}
		for _, key := range []expr.MetaKey{expr.MetaKeyOIFNAME, expr.MetaKeyIIFNAME} {
			if r := findRule(existing, acceptRule(key, bridge)); r != nil {
				if err := c.DelRule(&nftables.Rule{Table: table, Chain: chain, Handle: r.Handle}); err != nil {
					return err
				}
			}
		}
	}
	return c.Flush()
}
