package localnode

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// The node offers the volumes with existing paths. A configured volume hides a dynamic one with the same name.
func TestHostVolumesOfTheNode(t *testing.T) {
	s, dir := openStore(t), t.TempDir()
	later := filepath.Join(t.TempDir(), "later")
	n := New(Config{ID: "n", Store: s, Logger: hclog.NewNullLogger(), Settings: Settings{HostVolumes: map[string]*api.HostVolumeInfo{
		"static": {Path: dir, ReadOnly: true}, "later": {Path: later},
	}}})
	if _, err := s.Update(t.Context(), func(tx *store.Txn) error {
		for id, name := range map[string]string{"1": "static", "2": "dynamic", "3": "pending"} {
			v := &api.HostVolume{ID: id, Name: name, HostPath: filepath.Join(dir, "."), State: api.HostVolumeStateReady}
			if name == "pending" {
				v.State = api.HostVolumeStatePending
			}
			tx.PutHostVolume(&state.HostVolume{Volume: v})
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	found := n.usableHostVolumes()
	if len(found) != 2 || found["static"] == nil || found["static"].ID != "" || !found["static"].ReadOnly || found["dynamic"] == nil || found["dynamic"].ID != "2" {
		t.Errorf("volumes %+v", found)
	}
	if err := os.Mkdir(later, 0o700); err != nil {
		t.Fatal(err)
	}
	if found := n.usableHostVolumes(); len(found) != 3 || found["later"] == nil {
		t.Errorf("after the path was made: %+v", found)
	}
	if v, _, err := n.FindHostVolume(t.Context(), "later"); err != nil || v == nil || v.Path != later {
		t.Errorf("%+v, %v", v, err)
	}
	if !n.hasConfiguredVolume("later") || n.hasConfiguredVolume("dynamic") {
		t.Error("names of the configuration")
	}
}

// A volume for each allocation is a directory below the volume, which is made with the mode of the volume. It is no link, it leads
// through no directory of another user, and the volume itself is not mounted.
func TestDirectoriesOfAllocations(t *testing.T) {
	parent := t.TempDir()
	volume := filepath.Join(parent, "v")
	if err := errors.Join(os.Mkdir(volume, 0o700), os.Chmod(volume, 0o751), os.Symlink("/etc", filepath.Join(volume, "v[7]")), os.WriteFile(filepath.Join(volume, "v[8]"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	settings := func(readOnly bool) Settings {
		return Settings{
			HostVolumes:       map[string]*api.HostVolumeInfo{"v": {Path: volume, ReadOnly: readOnly}, "plain": {Path: parent, ReadOnly: true}},
			HostVolumeOptions: map[string]model.HostVolumeOptions{"v": {PerAlloc: true, Bidirectional: true}},
		}
	}
	find := func(s Settings, name string) string {
		v, bidirectional, err := New(Config{ID: "n", Store: openStore(t), Logger: hclog.NewNullLogger(), Settings: s}).FindHostVolume(t.Context(), name)
		if v == nil {
			return fmt.Sprint("none ", err)
		}
		info, err := os.Stat(v.Path)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(strings.TrimPrefix(v.Path, parent), " ", info.Mode().Perm(), " ", bidirectional)
	}
	for name, want := range map[string]string{
		"v[0]": "/v/v[0] -rwxr-x--x true", "v[12]": "/v/v[12] -rwxr-x--x true", "v[x]": "none <nil>", "v[0": "none <nil>", "v0]": "none <nil>", "v[-1]": "none <nil>",
		"v[../../x]": "none <nil>", "plain[0]": "none <nil>", "w[0]": "none <nil>",
	} {
		for range 2 {
			if got := find(settings(false), name); got != want {
				t.Errorf("%s: %s, want %s", name, got, want)
			}
		}
	}
	for name, want := range map[string]string{"v": "only its directories for allocations are mounted", "v[7]": "v[7] is no directory", "v[8]": "v[8] is no directory"} {
		if got := find(settings(false), name); !strings.Contains(got, want) {
			t.Errorf("%s: %s, want an error with %q", name, got, want)
		}
	}
	if got := find(settings(true), "v[3]"); !strings.Contains(got, "no such file") {
		t.Errorf("a missing directory of a read-only volume: %s", got)
	}
	if err := os.Chmod(volume, 0o777); err != nil {
		t.Fatal(err)
	}
	if got := find(settings(false), "v[0]"); !strings.Contains(got, "none") {
		t.Errorf("a volume to which everybody may write: %s", got)
	}
}

// A task with a volume can replace what is below it, also as root. It does not determine what another volume is.
func TestVolumesBelowDirectoriesOfTasks(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	path := func(name string) string { return filepath.Join(root, name) }
	for _, dir := range []string{"outer/inner/deep", "shown/inner", "other", "canary"} {
		if err := os.MkdirAll(path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{
		"alias": "outer", "operator": path("other"), "through": "outer/inner/../../other", "outer/made": "../canary",
	} {
		if err := os.Symlink(target, path(link)); err != nil {
			t.Fatal(err)
		}
	}
	volumes := map[string]*api.HostVolumeInfo{"outer": {Path: path("outer")}, "shown": {Path: path("shown"), ReadOnly: true}}
	for _, test := range []struct{ name, path, want, err string }{
		{"directory of the operator", "other", "other", ""},
		{"link of the operator", "operator", "other", ""},
		{"two names of one directory", "alias", "outer", ""},
		{"below a volume that tasks only read", "shown/inner", "shown/inner", ""},
		{"below a volume", "outer/inner", "", "is below the host volume \"outer\""},
		{"deep below a volume", "outer/inner/deep", "", "is below the host volume \"outer\""},
		{"below a volume by a link", "alias/inner", "", "is below the host volume \"outer\""},
		{"link of a task", "outer/made", "", "is below the host volume \"outer\""},
		{"link through a volume", "through", "", "is below the host volume \"outer\""},
		{"missing", "none", "", "no such file or directory"},
	} {
		t.Run(test.name, func(t *testing.T) {
			all := map[string]*api.HostVolumeInfo{"v": {Path: path(test.path)}}
			maps.Copy(all, volumes)
			n := New(Config{ID: "n", Store: openStore(t), Logger: hclog.NewNullLogger(), Settings: Settings{HostVolumes: all}})
			v, _, err := n.FindHostVolume(t.Context(), "v")
			offered := n.usableHostVolumes()["v"] != nil
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) || offered {
					t.Errorf("%v, offered: %v; want an error with %q", err, offered, test.err)
				}
				return
			}
			if err != nil || v.Path != path(test.want) || !offered {
				t.Errorf("%+v, %v, offered: %v; want %s", v, err, offered, path(test.want))
			}
		})
	}
}

const attackerUID = 12345

// volumeTree is a random directory tree, in which another user and tasks with volumes can write.
type volumeTree struct {
	root, canary string
	random       *rand.Rand
	dirs         []string // outer directories first
}

func newVolumeTree(t *testing.T, random *rand.Rand) *volumeTree {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	v := &volumeTree{root: filepath.Join(root, "tree"), canary: filepath.Join(root, "canary"), random: random}
	v.dirs = []string{v.root}
	if err := errors.Join(os.Mkdir(v.root, 0o755), os.Mkdir(v.canary, 0o755)); err != nil {
		t.Fatal(err)
	}
	for i := range 12 {
		path := filepath.Join(v.dirs[random.IntN(len(v.dirs))], fmt.Sprint("d", i))
		if random.IntN(4) == 0 {
			if err := os.Symlink(v.dirs[random.IntN(len(v.dirs))], path); err != nil {
				t.Fatal(err)
			}
			continue
		}
		mode := []os.FileMode{0o755, 0o755, 0o755, 0o777, 0o777 | os.ModeSticky, 0o775}[random.IntN(6)]
		if err := errors.Join(os.Mkdir(path, 0o755), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
		v.dirs = append(v.dirs, path)
	}
	if os.Geteuid() == 0 {
		for _, dir := range v.dirs[1:] {
			owner, group := 0, 0
			if random.IntN(5) == 0 {
				owner = attackerUID
			}
			if random.IntN(3) == 0 {
				group = attackerUID
			}
			if err := os.Lchown(dir, owner, group); err != nil {
				t.Fatal(err)
			}
		}
	}
	return v
}

// path returns a random path, also through links, and with elements that change nothing.
func (v *volumeTree) path() string {
	path := v.root
	for range 1 + v.random.IntN(4) {
		entries, err := os.ReadDir(path)
		if err != nil || len(entries) == 0 {
			break
		}
		path += []string{"/", "//", "/./"}[v.random.IntN(3)] + entries[v.random.IntN(len(entries))].Name()
	}
	return path
}

// replace replaces everything replaceable by another user, or by a task with one of the writable volumes, with a link to the
// canary.
func (v *volumeTree) replace(t *testing.T, writable []string) {
	t.Helper()
	for i := len(v.dirs) - 1; i >= 0; i-- { // inner directories first, because an outer one moves them
		dir := v.dirs[i]
		info, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}
		st := info.Sys().(*syscall.Stat_t)
		isTask := slices.ContainsFunc(writable, func(volume string) bool { return dir == volume || strings.HasPrefix(dir, volume+"/") })
		isOther := st.Uid == attackerUID || st.Mode&0o002 != 0 || st.Gid == attackerUID && st.Mode&0o020 != 0
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			path := filepath.Join(dir, entry.Name())
			info, err := os.Lstat(path)
			if err != nil {
				t.Fatal(err)
			}
			sticky := st.Mode&unix.S_ISVTX != 0 && st.Uid != attackerUID && info.Sys().(*syscall.Stat_t).Uid != attackerUID
			if !isTask && (!isOther || sticky) || strings.HasSuffix(path, ".moved") {
				continue
			}
			if err := errors.Join(os.Rename(path, path+".moved"), os.Symlink(v.canary, path)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A volume found by the node stays the same, whatever other users and tasks with volumes replace.
func TestFoundVolumesCannotBeReplaced(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, which gives directories to other users")
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	trees, store := 50, openStore(t)
	if testing.Short() {
		trees = 20
	}
	found := 0
	for tree := range trees {
		random := rand.New(rand.NewPCG(seed, uint64(tree)))
		v := newVolumeTree(t, random)
		all := make(map[string]*api.HostVolumeInfo)
		for i := range 1 + random.IntN(4) {
			all[fmt.Sprint("v", i)] = &api.HostVolumeInfo{Path: v.path(), ReadOnly: random.IntN(4) == 0}
		}
		n := New(Config{ID: "n", Store: store, Logger: hclog.NewNullLogger(), Settings: Settings{HostVolumes: all}})
		before := make(map[string]os.FileInfo) // by the found volume's path
		var writable []string
		for name, volume := range all {
			if f, _, err := n.FindHostVolume(t.Context(), name); err == nil {
				if !volume.ReadOnly {
					writable = append(writable, f.Path)
				}
				info, err := os.Lstat(f.Path)
				if err != nil || info.Mode()&os.ModeSymlink != 0 {
					t.Fatalf("tree %d: %s is %v, %v", tree, f.Path, info, err)
				}
				before[f.Path] = info
			}
		}
		found += len(before)
		v.replace(t, writable)
		for path, info := range before {
			if now, err := os.Stat(path); err != nil || !os.SameFile(now, info) {
				t.Errorf("tree %d: the volume %s was replaced (%v); volumes %v", tree, path, err, writable)
			}
		}
	}
	t.Logf("%d volumes found", found)
	if found == 0 {
		t.Error("no volume was found")
	}
}
