package taskuser

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/idrange"
)

// machineAccounts returns the accounts of /etc/passwd, by name, with what the file says of them.
func machineAccounts(t *testing.T) map[string]struct{ uid, gid string } {
	t.Helper()
	text, err := os.ReadFile("/etc/passwd")
	if err != nil {
		t.Fatal(err)
	}
	accounts := map[string]struct{ uid, gid string }{}
	for line := range strings.Lines(string(text)) {
		if f := strings.Split(strings.TrimSpace(line), ":"); len(f) == 7 {
			accounts[f[0]] = struct{ uid, gid string }{f[2], f[3]}
		}
	}
	return accounts
}

// TestDeniedByEveryName writes the user and the entry that denies it in all ways that stand for
// the same id.
func TestDeniedByEveryName(t *testing.T) {
	for name, a := range machineAccounts(t) {
		ways := []string{name, a.uid, "0" + a.uid, "000" + a.uid, "nomad-" + a.uid, name + ":" + a.gid, a.uid + ":nogroup", name + ":0", a.uid + ":65534"}
		for _, entry := range ways {
			d := Denied{Names: []string{"Administrator", entry}}
			for _, user := range ways {
				if err := d.Check(user); err == nil {
					t.Errorf("user.denylist %q does not deny the user %q", entry, user)
				}
			}
		}
		for _, user := range []string{" " + name, name + " ", "+" + a.uid, "-" + a.uid, "0x" + a.uid, a.uid + ".0"} {
			if _, err := Lookup(user); err == nil {
				t.Errorf("%q is a user", user)
			}
		}
	}
}

// A task must not take the ids of a denied user, in whatever way the entry names the user, except its own.
func TestIDsOfDeniedUsers(t *testing.T) {
	for name, a := range machineAccounts(t) {
		for _, entry := range []string{name, a.uid, "000" + a.uid, "nomad-" + a.uid} {
			d := Denied{Names: []string{"no-such-account", entry}, UIDs: idrange.Set{{First: 4000, Last: 4001}}, GIDs: idrange.Set{{First: 5000, Last: 5001}}}
			denied, err := Lookup(entry)
			if err != nil {
				t.Fatal(err)
			}
			uids, gids := d.DeniedIDs(&syscall.Credential{Uid: 4711, Gid: 4711})
			if !uids.Contains(denied.Uid) || !gids.Contains(denied.Gid) || !uids.Contains(4001) || !gids.Contains(5001) {
				t.Errorf("denied is %q: %v, %v", entry, uids, gids)
			}
			uids, gids = d.DeniedIDs(&syscall.Credential{Uid: denied.Uid, Gid: 4711, Groups: []uint32{denied.Gid}})
			if uids.Contains(denied.Uid) || gids.Contains(denied.Gid) || !uids.Contains(4000) || !gids.Contains(5000) {
				t.Errorf("denied is %q, which the task is: %v, %v", entry, uids, gids)
			}
			if len(d.UIDs) != 1 || len(d.GIDs) != 1 {
				t.Fatalf("the ranges of the operator are now %v, %v", d.UIDs, d.GIDs)
			}
		}
	}
}

func TestDeniedGroups(t *testing.T) {
	d := Denied{Names: []string{"root"}}
	for user, denied := range map[string]bool{
		"nobody": false, "nobody:nogroup": false, "nobody:65534": false, "65534": false, "4001": false, "4001:4001": false,
		"nobody:0": true, "nobody:root": true, "65534:00": true, "4001:0": true, "nobody:root ": false,
		"": false, "no-such-account": false, "no-such-account:0": false,
	} {
		if err := d.Check(user); (err != nil) != denied {
			t.Errorf("user %q: %v, denied is %t", user, err, denied)
		}
	}
}

// TestForeignGroups gives users each group of /etc/group, in all ways that stand for it.
func TestForeignGroups(t *testing.T) {
	text, err := os.ReadFile("/etc/group")
	if err != nil {
		t.Fatal(err)
	}
	accounts, uids := machineAccounts(t), map[string]bool{}
	for _, a := range accounts {
		uids[a.uid] = true
	}
	d := Denied{ForeignGroups: true}
	for line := range strings.Lines(string(text)) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) != 4 {
			continue
		}
		name, gid, members := f[0], f[2], strings.Split(f[3], ",")
		foreign := map[string]bool{"987654:" + name: true, "987654:0" + gid: true, "nomad-987654": false, "987654": false, "987654:987654": false}
		if !uids[gid] { // an account has groups of its own
			foreign[gid], foreign["nomad-"+gid] = true, true
		}
		for account, a := range accounts {
			isForeign := a.gid != gid && !slices.Contains(members, account)
			foreign[account+":"+name], foreign[account+":"+gid], foreign[a.uid+":"+name] = isForeign, isForeign, isForeign
			foreign[account], foreign[a.uid] = false, false
		}
		for user, isForeign := range foreign {
			if err := d.Check(user); (err != nil) != isForeign {
				t.Errorf("user %q: %v; it is foreign: %t", user, err, isForeign)
			}
		}
	}
}

func TestDeniedIDs(t *testing.T) {
	d := Denied{UIDs: idrange.Set{{First: 0, Last: 999}}, GIDs: idrange.Set{{First: 0, Last: 99}}}
	for user, want := range map[string]string{
		"root":     "running as uid 0 is denied by denied_host_uids of the driver",
		"00":       "running as uid 0 is denied by denied_host_uids of the driver",
		"nobody:0": "running with gid 0 is denied by denied_host_gids of the driver",
		"nobody":   "<nil>",
		"1000":     "<nil>",
	} {
		if got := fmt.Sprint(d.Check(user)); got != want {
			t.Errorf("user %q: %s; want %s", user, got, want)
		}
	}
}

func FuzzDeniedRoot(f *testing.F) {
	for _, user := range []string{"0", "00", "0:0", "root:root", "nomad-0", "nobody:0", "", "65534", "x:y:z", "nomad-:0"} {
		f.Add(user)
	}
	d := Denied{Names: []string{"root"}}
	f.Fuzz(func(t *testing.T, user string) {
		cred, err := Lookup(user)
		if err == nil && (cred.Uid == 0 || cred.Gid == 0) && d.Check(user) == nil {
			t.Errorf("user %q gets the ids %d and %d", user, cred.Uid, cred.Gid)
		}
	})
}
