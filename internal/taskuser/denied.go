package taskuser

import (
	"fmt"
	"os/user"
	"slices"
	"strconv"
	"syscall"

	"github.com/nomad-lite/nomad-lite/internal/idrange"
)

// Denied has the users and groups as which a task must not run. The zero value denies none.
type Denied struct {
	// Names are users, in the forms in which a task can name its user. Each user with the same id as one of them is
	// denied, and each user with the group of one of them, unless the account of the user is in that group.
	Names []string

	// ForeignGroups are all groups of this machine that the account of the task's user is not in. A user without
	// an account is in none, and a group id that no group of the machine has is not foreign.
	ForeignGroups bool

	// UIDs and GIDs are denied_host_uids and denied_host_gids of a driver. The groups of a user's account count.
	UIDs, GIDs idrange.Set
}

// Check returns an error if the user that a task names is denied. It looks up the accounts of this
// machine. A name that they do not have can only be denied as it is written, because it has no
// id: its driver refuses it, or looks it up elsewhere, as in an image.
func (d *Denied) Check(name string) error {
	if slices.Contains(d.Names, name) {
		return fmt.Errorf("running as user %q is disallowed", name)
	}
	userName, groupName, hasGroup := splitUserAndGroup(name)
	cred, hasAccount, err := lookupUser(userName)
	if err != nil {
		return nil
	}
	var own []uint32 // what the operator of the machine gave the account
	if hasAccount {
		own = append(cred.Groups, cred.Gid)
	}
	if hasGroup {
		if gid, err := lookupGroup(groupName); err == nil {
			cred.Gid = gid
		}
	}
	for _, denied := range d.Names {
		forbidden, err := Lookup(denied)
		if err != nil {
			continue // no account has this name
		}
		if cred.Uid == forbidden.Uid {
			return fmt.Errorf("running as user %q is disallowed: it is user id %d, as %q is", name, cred.Uid, denied)
		}
		if cred.Gid == forbidden.Gid && !slices.Contains(own, cred.Gid) {
			return fmt.Errorf("running as user %q is disallowed: its group id %d is that of %q", name, cred.Gid, denied)
		}
	}
	if d.ForeignGroups && !slices.Contains(own, cred.Gid) {
		if g, err := user.LookupGroupId(strconv.FormatUint(uint64(cred.Gid), 10)); err == nil {
			return fmt.Errorf("running as user %q is disallowed: its group id %d is that of the group %q, in which it is not: the operator must add an account to the group, or remove the driver from user.checked_drivers", name, cred.Gid, g.Name)
		}
	}
	return d.CheckCredential(cred)
}

// CheckCredential returns an error if one of the ids is among the denied UIDs and GIDs.
func (d *Denied) CheckCredential(cred *syscall.Credential) error {
	if d.UIDs.Contains(cred.Uid) {
		return fmt.Errorf("running as uid %d is denied by denied_host_uids of the driver", cred.Uid)
	}
	for _, gid := range append(slices.Clone(cred.Groups), cred.Gid) {
		if d.GIDs.Contains(gid) {
			return fmt.Errorf("running with gid %d is denied by denied_host_gids of the driver", gid)
		}
	}
	return nil
}

// DeniedIDs returns the denied user and group ids that a task must not switch to: all denied ids except those in own, the
// credential of the task. It looks up the accounts of this machine.
func (d *Denied) DeniedIDs(own *syscall.Credential) (uids, gids idrange.Set) {
	uids, gids = slices.Clone(d.UIDs), slices.Clone(d.GIDs)
	for _, denied := range d.Names {
		forbidden, err := Lookup(denied)
		if err != nil {
			continue // no account has this name
		}
		if forbidden.Uid != own.Uid {
			uids = append(uids, idrange.Range{First: forbidden.Uid, Last: forbidden.Uid})
		}
		if forbidden.Gid != own.Gid && !slices.Contains(own.Groups, forbidden.Gid) {
			gids = append(gids, idrange.Range{First: forbidden.Gid, Last: forbidden.Gid})
		}
	}
	return uids, gids
}
