package bridge

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/nomad-lite/nomad-lite/internal/opcount"
)

// Rules in the bridge's own table cannot accept a packet that another table drops. Docker and other iptables users set the
// FORWARD chain's policy to drop. So this file adds accepting rules to the iptables table, as iptables-nft writes and lists
// them: "-i BRIDGE -j ACCEPT" and "-o BRIDGE -j ACCEPT".

// iptablesFamilies are the iptables and ip6tables families.
var iptablesFamilies = []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6}

// dockerUserChain is the chain in which Docker keeps other programs' rules; Docker rewrites its own chains.
const dockerUserChain, forwardChain = "DOCKER-USER", "FORWARD"

// ensureIptablesForwardAcceptRules adds the accepting rules for IPv4 and IPv6 if an iptables chain can drop forwarded
// packets.
func (b *Bridge) ensureIptablesForwardAcceptRules() error {
	for _, family := range iptablesFamilies {
		if err := b.ensureForwardAcceptRulesInTable(&nftables.Table{Name: "filter", Family: family}); err != nil {
			return fmt.Errorf("accept forwarded packets in the table filter of iptables: %w", err)
		}
	}
	return nil
}

func (b *Bridge) ensureForwardAcceptRulesInTable(table *nftables.Table) error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	name, err := findChainNameForAcceptRules(c, table)
	if name == "" || err != nil {
		return err
	}
	chain := &nftables.Chain{Name: name, Table: table}
	opcount.Count(opcount.Netlink)
	existing, err := c.GetRules(table, chain)
	if err != nil {
		return fmt.Errorf("list chain %s: %w", name, err)
	}
	for _, key := range []expr.MetaKey{expr.MetaKeyOIFNAME, expr.MetaKeyIIFNAME} {
		accept := newAcceptRuleExprs(key, b.config.Name)
		if findRuleIgnoringCounters(existing, accept) == nil {
			c.InsertRule(&nftables.Rule{Table: table, Chain: chain, Exprs: accept})
		}
	}
	opcount.Count(opcount.Netlink)
	return c.Flush()
}

// findChainNameForAcceptRules returns the name of the chain for accepting rules, "" if none is needed.
func findChainNameForAcceptRules(c *nftables.Conn, table *nftables.Table) (string, error) {
	chains, err := findForwardAndDockerUserChains(c, table)
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

// findForwardAndDockerUserChains returns a table's chains DOCKER-USER and FORWARD, which can have accepting rules.
func findForwardAndDockerUserChains(c *nftables.Conn, table *nftables.Table) ([]*nftables.Chain, error) {
	opcount.Count(opcount.Netlink)
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

// newAcceptRuleExprs returns the rule that iptables-nft writes to accept packets by input or output interface name.
func newAcceptRuleExprs(key expr.MetaKey, interfaceName string) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: key, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: append([]byte(interfaceName), 0)},
		&expr.Counter{},
		&expr.Verdict{Kind: expr.VerdictAccept},
	}
}

// findRuleIgnoringCounters returns the rule with the same expressions as want, whatever its counters are; nil if there
// is none.
func findRuleIgnoringCounters(rules []*nftables.Rule, want []expr.Any) *nftables.Rule {
	for _, r := range rules {
		if equalExprsIgnoringCounters(r.Exprs, want) {
			return r
		}
	}
	return nil
}

func equalExprsIgnoringCounters(a, b []expr.Any) bool {
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

// removeIptablesForwardAcceptRules removes a bridge's accepting rules for IPv4 and IPv6.
func removeIptablesForwardAcceptRules(bridgeName string) error {
	var errs []error
	for _, family := range iptablesFamilies {
		if err := removeForwardAcceptRulesInTable(&nftables.Table{Name: "filter", Family: family}, bridgeName); err != nil {
			errs = append(errs, fmt.Errorf("remove rules of %s from the table filter of iptables: %w", bridgeName, err))
		}
	}
	return errors.Join(errs...)
}

func removeForwardAcceptRulesInTable(table *nftables.Table, bridgeName string) error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	chains, err := findForwardAndDockerUserChains(c, table)
	if err != nil {
		return err
	}
	for _, chain := range chains {
		opcount.Count(opcount.Netlink)
		existing, err := c.GetRules(table, chain)
		if err != nil {
			return fmt.Errorf("list chain %s: %w", chain.Name, err)
		}
		for _, key := range []expr.MetaKey{expr.MetaKeyOIFNAME, expr.MetaKeyIIFNAME} {
			if r := findRuleIgnoringCounters(existing, newAcceptRuleExprs(key, bridgeName)); r != nil {
				if err := c.DelRule(&nftables.Rule{Table: table, Chain: chain, Handle: r.Handle}); err != nil {
					return err
				}
			}
		}
	}
	opcount.Count(opcount.Netlink)
	return c.Flush()
}
