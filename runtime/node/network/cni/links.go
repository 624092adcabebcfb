package cni

import (
	"errors"
	"fmt"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/opcount"
)

// Link is an interface reported by plugins, which existed when they had connected a namespace.
type Link struct {
	Name        string
	InNamespace bool // false means a machine interface
	IsPort      bool // the interface is a port, for example on a bridge
}

// FindLostLink returns which of a connected namespace's links was removed, or is no longer a port; "" if there is none. It calls
// no plugin.
func FindLostLink(namespacePath string, links []Link) (reason string, err error) {
	err = withLinkLookup(namespacePath, func(lookup linkLookupFunc) error {
		for _, l := range links {
			current, err := lookup(l.Name, l.InNamespace)
			switch {
			case err != nil:
				return err
			case current == nil:
				reason = "its interface " + l.Name + " was removed"
				return nil
			case l.IsPort && !current.IsPort:
				reason = "its interface " + l.Name + " was not connected to its bridge"
				return nil
			}
		}
		return nil
	})
	return reason, err
}

// findReportedLinks returns the interfaces in a result. It leaves out missing ones, because plugins may report such.
func findReportedLinks(result *types100.Result, namespacePath string) (links []Link, err error) {
	if len(result.Interfaces) == 0 {
		return nil, nil
	}
	err = withLinkLookup(namespacePath, func(lookup linkLookupFunc) error {
		for _, i := range result.Interfaces {
			l, err := lookup(i.Name, i.Sandbox != "")
			if err != nil {
				return err
			}
			if l != nil {
				links = append(links, *l)
			}
		}
		return nil
	})
	return links, err
}

// linkLookupFunc returns an interface, nil if it does not exist.
type linkLookupFunc func(name string, inNamespace bool) (*Link, error)

// withLinkLookup calls f with a function that looks up the machine's and the namespace's interfaces.
func withLinkLookup(namespacePath string, f func(linkLookupFunc) error) error {
	ns, err := vnetns.GetFromPath(namespacePath)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer ns.Close()
	inside, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("%s is not a network namespace: %w", namespacePath, err)
	}
	defer inside.Close()
	return f(func(name string, inNamespace bool) (*Link, error) {
		lookup := netlink.LinkByName
		if inNamespace {
			lookup = inside.LinkByName
		}
		opcount.Count(opcount.Netlink)
		link, err := lookup(name)
		if notFound := (netlink.LinkNotFoundError{}); errors.As(err, &notFound) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("interface %s: %w", name, err)
		}
		return &Link{Name: name, InNamespace: inNamespace, IsPort: link.Attrs().MasterIndex != 0}, nil
	})
}
