package process

import (
	"fmt"
	"os/user"
	"strconv"
	"strings"
	"syscall"
)

// LookupUser returns the ids of the user that a task names: a name, a uid, uid:gid, or
// nomad-<uid> for a user without an entry in the user database.
func LookupUser(name string) (*syscall.Credential, error) {
	if text, ok := strings.CutPrefix(name, "nomad-"); ok {
		if uid, err := parseUIDOrGID(text); err == nil {
			return &syscall.Credential{Uid: uid, Gid: uid}, nil
		}
	}
	userPart, groupPart, hasGroup := strings.Cut(name, ":")
	cred := &syscall.Credential{}
	u, err := user.Lookup(userPart)
	if err != nil {
		uid, idErr := parseUIDOrGID(userPart)
		if idErr != nil {
			return nil, err
		}
		// A uid without an entry in the user database has the group with the same number
		// only.
		cred.Uid, cred.Gid = uid, uid
		u, err = user.LookupId(userPart)
	}
	if err == nil {
		if cred.Uid, err = parseUIDOrGID(u.Uid); err != nil {
			return nil, err
		}
		if cred.Gid, err = parseUIDOrGID(u.Gid); err != nil {
			return nil, err
		}
		groups, err := u.GroupIds()
		if err != nil {
			return nil, fmt.Errorf("look up the groups: %w", err)
		}
		for _, g := range groups {
			gid, err := parseUIDOrGID(g)
			if err != nil {
				return nil, err
			}
			cred.Groups = append(cred.Groups, gid)
		}
	}
	if hasGroup {
		gid, err := parseUIDOrGID(groupPart)
		if err != nil {
			g, lookupErr := user.LookupGroup(groupPart)
			if lookupErr != nil {
				return nil, lookupErr
			}
			if gid, err = parseUIDOrGID(g.Gid); err != nil {
				return nil, err
			}
		}
		cred.Gid = gid
	}
	return cred, nil
}

func parseUIDOrGID(text string) (uint32, error) {
	id, err := strconv.ParseUint(text, 10, 32)
	if err != nil || id == 1<<32-1 { // setuid(2) and setgid(2) interpret -1 as "unchanged"
		return 0, fmt.Errorf("%q is no id", text)
	}
	return uint32(id), nil
}
