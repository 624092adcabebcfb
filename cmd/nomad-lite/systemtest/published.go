package systemtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// PublishedVersion is the version that PublishModule gives to the module.
const PublishedVersion = "v0.1.0"

// PublishModule publishes the module of this checkout in the files of a module proxy, and returns the environment for
// go commands outside of the repository, which get the module from there as from a release.
//
// The go commands have an empty module cache of their own, because a module cache never replaces a version, and fill it
// from the module cache of this user before they send requests. The build cache is shared: with -trimpath, a package of
// a dependency has one entry there, whatever the path of the module cache.
func PublishModule(t testing.TB) (environ []string) {
	t.Helper()
	dir := t.TempDir()
	proxy := filepath.Join(dir, "proxy")
	publish := exec.Command("go", "run", "-C", filepath.Join(RepositoryDir(), "internal/tools"), "./publish", "-version", PublishedVersion, "-o", proxy, RepositoryDir())
	publish.Env = append(os.Environ(), "GOFLAGS=", "CGO_ENABLED=0")
	if out, err := publish.CombinedOutput(); err != nil {
		t.Fatalf("publish the module: %v\n%s", err, out)
	}
	out, err := exec.Command("go", "env", "GOMODCACHE", "GOPROXY").Output()
	if err != nil {
		t.Fatal("go env: ", err)
	}
	moduleCache, otherProxies, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return append(os.Environ(),
		"GOPROXY=file://"+proxy+",file://"+filepath.Join(moduleCache, "cache/download")+","+otherProxies,
		"GONOSUMDB=*", // the checksums of the dependencies are in this module's go.sum, and the database needs network
		"GOMODCACHE="+filepath.Join(dir, "modules"),
		"GOFLAGS=-mod=mod -modcacherw -trimpath", // the test framework cannot remove a module cache that is read-only
		"GOWORK=off",
		"GOPRIVATE=",
		"CGO_ENABLED=0",
	)
}
