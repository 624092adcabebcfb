package hostile

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/endurance"
)

// textNode is a file or directory of the world of a job text.
type textNode struct {
	parent *textNode // nil for the world's top, which everybody can search
	name   string    // cannot be guessed
	mode   fs.FileMode
	uid    int
	isDir  bool
	path   string
}

// isAtOrBelow reports whether n is dir, or is below it.
func (n *textNode) isAtOrBelow(dir *textNode) bool {
	return n != nil && (n == dir || n.parent.isAtOrBelow(dir))
}

// textWorld is a random tree of files of two accounts, in which a job file is read by root.
type textWorld struct {
	*rand.Rand
	top, home, dataDir *textNode
	dirs, files        []*textNode
	links              []string
	cwd, jobDir        *textNode
	roots              []*textNode
	allowed            *textNode // path of -allow-file, or nil
	nodeByName         map[string]*textNode
}

func newTextWorld(r *rand.Rand, top string) (*textWorld, error) {
	w := &textWorld{Rand: r, nodeByName: map[string]*textNode{}}
	w.top = &textNode{name: filepath.Base(top), mode: 0o755, isDir: true, path: top}
	w.dirs = []*textNode{w.top}
	w.home = w.addDir(w.top, []fs.FileMode{0o700, 0o711, 0o755})
	for range 25 {
		w.addDir(w.dirs[w.IntN(len(w.dirs))], []fs.FileMode{0o700, 0o711, 0o755, 0o750, 0o755})
	}
	for range 60 {
		parent := w.dirs[w.IntN(len(w.dirs))]
		w.files = append(w.files, w.newNode(parent, false, []fs.FileMode{0o600, 0o644, 0o640, 0o444}))
	}
	if w.dataDir = w.dirs[2+w.IntN(len(w.dirs)-2)]; w.dataDir == w.home {
		w.dataDir = w.dirs[len(w.dirs)-1]
	}
	w.cwd, w.jobDir = w.dirs[w.IntN(len(w.dirs))], w.dirs[w.IntN(len(w.dirs))]
	if w.IntN(3) == 0 {
		w.allowed = slices.Concat(w.dirs[1:], w.files)[w.IntN(len(w.dirs)-1+len(w.files))]
	}
	gits := map[*textNode]int{}
	for range 5 {
		gits[w.dirs[w.IntN(len(w.dirs))]] = 4321 * w.IntN(2)
	}
	w.setRoots(gits)
	return w, w.write(gits)
}

func (w *textWorld) newNode(parent *textNode, isDir bool, modes []fs.FileMode) *textNode {
	name := []string{"", "."}[w.IntN(2)] + "n" + strconv.FormatUint(w.Uint64(), 36)
	n := &textNode{parent: parent, name: name, mode: modes[w.IntN(len(modes))], isDir: isDir, path: parent.path + "/" + name}
	if w.IntN(3) == 0 {
		n.uid = 4321
	}
	w.nodeByName[name] = n
	return n
}

func (w *textWorld) addDir(parent *textNode, modes []fs.FileMode) *textNode {
	n := w.newNode(parent, true, modes)
	w.dirs = append(w.dirs, n)
	return n
}

// setRoots finds the directories below which the text may read, as the documentation describes them.
func (w *textWorld) setRoots(gits map[*textNode]int) {
	for _, start := range []*textNode{w.cwd, w.jobDir} {
		candidates := []*textNode{start}
		for d := start; d != nil; d = d.parent {
			if owner, isTop := gits[d]; isTop {
				if owner == 0 || owner == start.uid {
					candidates = append(candidates, d)
				}
				break
			}
		}
		for _, d := range candidates {
			if !w.home.isAtOrBelow(d) { // neither a home directory nor one above it
				w.roots = append(w.roots, d)
			}
		}
	}
}

func (w *textWorld) write(gits map[*textNode]int) error {
	var err error
	try := func(e error) {
		if err == nil {
			err = e
		}
	}
	for _, d := range w.dirs[1:] {
		try(os.Mkdir(d.path, 0o700))
	}
	for _, f := range w.files {
		try(os.WriteFile(f.path, []byte("content of "+f.name), 0o600))
	}
	for d, owner := range gits {
		try(os.Mkdir(d.path+"/.git", 0o755))
		try(os.Chown(d.path+"/.git", owner, owner))
	}
	for _, name := range []string{"state.db", "lock"} {
		try(os.WriteFile(w.dataDir.path+"/"+name, nil, 0o600))
	}
	for i := range 15 {
		in, to := w.dirs[w.IntN(len(w.dirs))], w.anyNode()
		target := []string{to.path, "..", ".", "../..", relativePath(in.path, to.path), "/proc/self", to.path + "/.."}[w.IntN(7)]
		link := fmt.Sprintf("%s/link%d", in.path, i)
		try(os.Symlink(target, link))
		w.links = append(w.links, link)
	}
	for _, n := range slices.Concat(w.dirs[1:], w.files) {
		try(os.Chown(n.path, n.uid, n.uid))
		try(os.Chmod(n.path, n.mode))
	}
	return err
}

func relativePath(from, to string) string {
	path, err := filepath.Rel(from, to)
	if err != nil {
		return to
	}
	return path
}

func (w *textWorld) anyNode() *textNode {
	if w.IntN(2) == 0 {
		return w.files[w.IntN(len(w.files))]
	}
	return w.dirs[w.IntN(len(w.dirs))]
}

// rootsAbove returns the roots that a node is or is below.
func (w *textWorld) rootsAbove(n *textNode) []*textNode {
	return slices.DeleteFunc(slices.Clone(w.roots), func(root *textNode) bool { return !n.isAtOrBelow(root) })
}

// canSearch reports whether names may be looked up in a directory that each path of the text reaches, and canList whether they
// may be listed.
func (w *textWorld) canSearch(d *textNode) bool { return w.can(d, 0o001) }
func (w *textWorld) canList(d *textNode) bool   { return w.canSearch(d) && w.can(d, 0o004) }

// canRead reports whether the text may read a file.
func (w *textWorld) canRead(f *textNode) bool {
	return f == w.allowed || w.canSearch(f.parent) && w.can(f, 0o004)
}

// can reports whether the text has a permission of everybody on a node, or the permission of root below a root.
func (w *textWorld) can(n *textNode, everybody fs.FileMode) bool {
	if n.isAtOrBelow(w.dataDir) {
		return false
	}
	if w.allowed != nil && n.isAtOrBelow(w.allowed) {
		return true
	}
	roots := w.rootsAbove(n)
	isOfRoot := n.uid == 0 || slices.ContainsFunc(roots, func(root *textNode) bool { return root.uid == n.uid })
	if len(roots) > 0 && (isOfRoot || n.mode&everybody != 0) {
		return true
	}
	for d := n.parent; d != nil; d = d.parent {
		if d.mode&0o001 == 0 {
			return false
		}
	}
	return n.mode&everybody != 0
}

// canReach reports whether the text may look up the names of a path without links from the top of the world.
func (w *textWorld) canReach(n *textNode) bool {
	for d := n; d.parent != nil; d = d.parent {
		isOnTheWay := slices.ContainsFunc([]*textNode{w.cwd, w.jobDir, w.allowed}, func(end *textNode) bool { return end != nil && end.isAtOrBelow(d) })
		if !isOnTheWay && !w.canSearch(d.parent) || d.parent.isAtOrBelow(w.dataDir) {
			return false
		}
	}
	return true
}

// path returns a random way to write the path of a node.
func (w *textWorld) path() string {
	n := w.anyNode()
	link := w.links[w.IntN(len(w.links))]
	return []string{
		n.path, relativePath(w.cwd.path, n.path), link, link + "/" + n.name, link + "/../" + n.name, "/proc/self/root" + n.path, "/proc/self/cwd/" + n.name,
		n.path + "/../" + w.anyNode().name, link + relativePath("/", n.path), "/etc/shadow", "/proc/self/environ",
	}[w.IntN(11)]
}

// runText runs the command on a text whose meta has the values of the expressions, and returns those that were not refused.
func (w *textWorld) runText(ctx context.Context, expressions []string) (map[int]string, error) {
	var text strings.Builder
	text.WriteString("job \"j\" {\n  meta {\n")
	for i, e := range expressions {
		fmt.Fprintf(&text, "    m%d = try(%s, \"REFUSED\")\n", i, e)
	}
	text.WriteString("  }\n}\n")
	job := filepath.Join(w.jobDir.path, "job.nomad.hcl")
	if err := os.WriteFile(job, []byte(text.String()), 0o600); err != nil {
		return nil, err
	}
	args := []string{"job", "run", "-output"}
	if w.allowed != nil {
		args = append(args, "-allow-file", w.allowed.path)
	}
	cmd := exec.CommandContext(ctx, "nomad-lite", append(args, job)...)
	cmd.Dir = w.cwd.path
	cmd.Env = append(os.Environ(), "HOME="+w.home.path)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, stderr.String())
	}
	var printed struct {
		Job struct{ Meta map[string]string }
	}
	if err := json.Unmarshal(out, &printed); err != nil {
		return nil, err
	}
	values := map[int]string{}
	for i := range expressions {
		if v := printed.Job.Meta[fmt.Sprint("m", i)]; v != "REFUSED" {
			values[i] = v
		}
	}
	return values, nil
}

// newTextWorldOfSeed returns the world of an iteration, and a function that removes it.
func newTextWorldOfSeed(seed uint64) (w *textWorld, remove func(), err error) {
	top, err := os.MkdirTemp("/var/tmp", "nomad-lite-jobtexts")
	if err != nil {
		return nil, nil, err
	}
	if err := os.Chmod(top, 0o755); err != nil {
		return nil, nil, err
	}
	w, err = newTextWorld(rand.New(rand.NewPCG(seed, 0)), top)
	return w, func() { os.RemoveAll(top) }, err
}

func startJobTexts(t *testing.T) *endurance.Run {
	if os.Geteuid() != 0 {
		t.Skip("only root can make files of two accounts, and read them")
	}
	return endurance.Start(t, endurance.Config{Sample: 10, Unit: "job texts", Load: "30 calls of file functions each, while entries are exchanged"})
}

// Whatever functions the text of a job calls, with root as the caller, it gets no content of a file and no name that it may not
// read, also while another process exchanges files, directories and links.
//
//	make test-hostile-jobs
func TestJobTextsReadNothingMore(t *testing.T) {
	run := startJobTexts(t)
	run.Each(func(seed uint64) error {
		w, remove, err := newTextWorldOfSeed(seed)
		if err != nil {
			return err
		}
		defer remove()
		expressions := make([]string, 30)
		for i := range expressions {
			path := w.path()
			expressions[i] = []string{
				fmt.Sprintf("file(%q)", path),
				fmt.Sprintf("base64decode(filebase64(%q))", path),
				fmt.Sprintf("tostring(fileexists(%q))", path),
				fmt.Sprintf("jsonencode(fileset(%q, %q))", path, []string{"*", "**", "*/*", "../*", "{*,.*}", "**/../*"}[w.IntN(6)]),
			}[w.IntN(4)]
		}
		stop := w.exchangeEntries()
		values, err := w.runText(t.Context(), expressions)
		stop()
		if err != nil {
			return err
		}
		for i, value := range values {
			if reason := w.judge(expressions[i], value); reason != "" {
				return fmt.Errorf("%s returned %.300s: %s (working directory %s, job file in %s, allowed %+v)", expressions[i], value, reason, w.cwd.path, w.jobDir.path, w.allowed)
			}
		}
		run.Add(1)
		return nil
	})
}

// judge returns why a value shows more than the text may read, or "".
func (w *textWorld) judge(expression, value string) string {
	if strings.HasPrefix(expression, "tostring(fileexists") {
		var path string
		if _, err := fmt.Sscanf(expression, "tostring(fileexists(%q))", &path); err != nil {
			return err.Error()
		}
		// The path of a node without links, and one whose parents stay where they are.
		if n := w.nodeByName[filepath.Base(path)]; n != nil && n.path == path && !w.canReach(n) {
			return "the text may not learn whether the file exists"
		}
		return ""
	}
	for name, n := range w.nodeByName {
		switch {
		case strings.Contains(value, "content of "+name) && !w.canRead(n):
			return fmt.Sprintf("the text may not read %+v", *n)
		case strings.HasPrefix(expression, "jsonencode") && strings.Contains(value, name) && !strings.Contains(expression, name) && !w.canList(n.parent):
			return fmt.Sprintf("the text may not list %+v", *n.parent)
		}
	}
	if strings.Contains(value, "root:") || strings.Contains(value, "PATH=") {
		return "the file is one of the machine that not everybody can read"
	}
	return ""
}

// exchangeEntries exchanges links, and a file and a link of one directory, until stop is called. Each content and name of a node
// keeps its directory.
func (w *textWorld) exchangeEntries() (stop func()) {
	var pairs [][2]string
	// A link that changes places with a file changes places with no link of another directory, which would move the file there.
	moving, staying := w.links[:len(w.links)/2], w.links[len(w.links)/2:]
	for range 4 {
		pairs = append(pairs, [2]string{moving[w.IntN(len(moving))], moving[w.IntN(len(moving))]})
		link := staying[w.IntN(len(staying))]
		for _, f := range w.files {
			if filepath.Dir(link) == f.parent.path && f != w.allowed {
				pairs = append(pairs, [2]string{link, f.path})
				break
			}
		}
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			for _, p := range pairs {
				_ = unix.Renameat2(unix.AT_FDCWD, p[0], unix.AT_FDCWD, p[1], unix.RENAME_EXCHANGE)
			}
		}
	})
	return func() { close(done); wg.Wait() }
}

// A text reads each file that it may read, at its path without links.
func TestJobTextsFindPermittedFiles(t *testing.T) {
	run := startJobTexts(t)
	run.Each(func(seed uint64) error {
		w, remove, err := newTextWorldOfSeed(seed)
		if err != nil {
			return err
		}
		defer remove()
		var expressions []string
		var files []*textNode
		for _, f := range w.files {
			for _, path := range []string{f.path, relativePath(w.cwd.path, f.path)} {
				files, expressions = append(files, f), append(expressions, fmt.Sprintf("file(%q)", path))
			}
		}
		values, err := w.runText(t.Context(), expressions)
		if err != nil {
			return err
		}
		for i, f := range files {
			_, wasRead := values[i]
			if want := w.canReach(f) && w.canRead(f); wasRead != want {
				return fmt.Errorf("%s: was read: %t, want %t: %+v (working directory %s, job file in %s, allowed %+v)", expressions[i], wasRead, want, *f, w.cwd.path, w.jobDir.path, w.allowed)
			}
		}
		run.Add(1)
		return nil
	})
}
