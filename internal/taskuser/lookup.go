package taskuser

import (
	"errors"
	"fmt"
	"os/user"
	"strconv"
	"strings"
	"syscall"
)

// madeUpPrefix is the prefix of the name of a user without an account, which the host has chosen for one task:
// nomad-<uid>.
const madeUpPrefix = "nomad-"

// Lookup returns the ids of the user that a task names: a name, a uid, user:group, or
// nomad-<uid> for a user without an account. A name of digits that no account has is a uid. The error names the user; it
// wraps user.UnknownUserError or user.UnknownGroupError if there is no account or group of that name.
func Lookup(name string) (*syscall.Credential, error) {
	userName, groupName, hasGroup := splitUserAndGroup(name)
	cred, _, err := lookupUser(userName)
	if err == nil && hasGroup {
		cred.Gid, err = lookupGroup(groupName)
	}
	switch {
	case err == nil:
		return cred, nil
	case errors.As(err, new(user.UnknownUserError)), errors.As(err, new(user.UnknownGroupError)):
		return nil, unknownNameError{err}
	}
	return nil, fmt.Errorf("user %q: %w", name, err)
}

// unknownNameError is an error of package os/user that names the user or group, without the prefix "user: " or "group: ".
type unknownNameError struct{ cause error }

func (e unknownNameError) Error() string {
	_, text, _ := strings.Cut(e.cause.Error(), ": ")
	return text
}

func (e unknownNameError) Unwrap() error { return e.cause }

// UID returns the user id of the user that a task names, and false if this machine does not know it, or if name is empty.
func UID(name string) (uint32, bool) {
	if name == "" {
		return 0, false // os/user would read all accounts
	}
	userName, _, _ := splitUserAndGroup(name)
	cred, _, err := lookupUser(userName)
	if err != nil {
		return 0, false
	}
	return cred.Uid, true
}

func splitUserAndGroup(name string) (userName, groupName string, hasGroup bool) {
	if text, ok := strings.CutPrefix(name, madeUpPrefix); ok {
		if _, err := parseID(text); err == nil {
			return name, "", false
		}
	}
	return strings.Cut(name, ":")
}

// lookupUser returns the ids of a user, and whether the user has an account. Without an account, the only group of the
// user has the same number as the user.
func lookupUser(name string) (cred *syscall.Credential, hasAccount bool, err error) {
	if text, ok := strings.CutPrefix(name, madeUpPrefix); ok {
		if id, err := parseID(text); err == nil {
			return &syscall.Credential{Uid: id, Gid: id}, false, nil
		}
	}
	u, err := user.Lookup(name)
	if err != nil {
		id, idErr := parseID(name)
		if idErr != nil {
			return nil, false, err
		}
		if u, err = user.LookupId(strconv.FormatUint(uint64(id), 10)); err != nil {
			return &syscall.Credential{Uid: id, Gid: id}, false, nil
		}
	}
	cred = &syscall.Credential{}
	if cred.Uid, err = parseID(u.Uid); err != nil {
		return nil, false, err
	}
	if cred.Gid, err = parseID(u.Gid); err != nil {
		return nil, false, err
	}
	groups, err := u.GroupIds()
	if err != nil {
		return nil, false, fmt.Errorf("look up the groups: %w", err)
	}
	for _, g := range groups {
		gid, err := parseID(g)
		if err != nil {
			return nil, false, err
		}
		cred.Groups = append(cred.Groups, gid)
	}
	return cred, true, nil
}

func lookupGroup(name string) (uint32, error) {
	if gid, err := parseID(name); err == nil {
		return gid, nil
	}
	g, err := user.LookupGroup(name)
	if err != nil {
		return 0, err
	}
	return parseID(g.Gid)
}

func parseID(text string) (uint32, error) {
	id, err := strconv.ParseUint(text, 10, 32)
	if err != nil || id == 1<<32-1 { // setuid(2) and setgid(2) interpret -1 as "unchanged"
		return 0, fmt.Errorf("%q is no id", text)
	}
	return uint32(id), nil
}
