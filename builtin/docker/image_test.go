package docker

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

const testImageID = "sha256:1111111111111111111111111111111111111111111111111111111111111111"

// acquire brings the image of a task to a fake engine.
func acquire(t *testing.T, ctx context.Context, d *Driver, task map[string]any) (string, error) {
	t.Helper()
	start := newTestStart(t, task)
	var c taskConfig
	if err := start.DecodeConfig(&c); err != nil {
		t.Fatal(err)
	}
	if err := c.validateAndParseDurations(); err != nil {
		t.Fatal(err)
	}
	return d.images.acquireImageForStart(ctx, &c, start)
}

func TestPullPolicy(t *testing.T) {
	for _, test := range []struct {
		name   string
		task   map[string]any
		exists bool
		pulls  int
		want   string // part of the error; empty means success
	}{
		{"an image with a tag that exists", map[string]any{"image": "app:1"}, true, 0, ""},
		{"an image that does not exist", map[string]any{"image": "app:1"}, false, 1, ""},
		{"the tag latest", map[string]any{"image": "app:latest"}, true, 1, ""},
		{"no tag", map[string]any{"image": "https://app"}, true, 1, ""},
		{"force_pull", map[string]any{"image": "app:1", "force_pull": true}, true, 1, ""},
		{"an id that exists", map[string]any{"image": testImageID}, true, 0, ""},
		{"an id that does not exist", map[string]any{"image": testImageID}, false, 0, "cannot be pulled"},
		{"no name of an image", map[string]any{"image": "UPPER"}, false, 0, `image "UPPER"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := newFakeEngine(t)
			d := newTestDriver(t, e.host, nil)
			var mu sync.Mutex
			exists := test.exists
			e.handle("POST /images/create", func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				exists = true
				reply(http.StatusOK, map[string]any{"status": "done"})(w, r)
			})
			inspect := func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				if !exists {
					missing("image")(w, r)
					return
				}
				reply(http.StatusOK, map[string]any{"Id": testImageID})(w, r)
			}
			for _, name := range []string{"app:1", "app:latest", testImageID} {
				e.handle("GET /images/"+name+"/json", inspect)
			}
			id, err := acquire(t, t.Context(), d, test.task)
			if n := e.count("POST /images/create"); n != test.pulls {
				t.Errorf("%d pulls, want %d", n, test.pulls)
			}
			switch {
			case test.want == "" && (err != nil || id != testImageID):
				t.Errorf("got %q, %v", id, err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("got %v, want an error with %q", err, test.want)
			}
		})
	}
}

func TestPullErrors(t *testing.T) {
	hang := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	for _, test := range []struct {
		name                     string
		pull                     http.HandlerFunc
		activityTimeout, timeout string
		want                     string
		recoverable              bool
	}{
		{"the registry does not know the image", reply(http.StatusOK, map[string]any{"errorDetail": map[string]any{"message": "manifest unknown"}}), "1m", "1m", "manifest unknown", false},
		{"the engine reports an error", reply(http.StatusInternalServerError, map[string]any{"message": "disk full"}), "1m", "1m", "disk full", true},
		{"no progress", hang, "20ms", "1m", "pull_activity_timeout", true},
		{"progress, but no end", func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				fmt.Fprintln(w, `{"status":"Downloading"}`)
				w.(http.Flusher).Flush()
				time.Sleep(5 * time.Millisecond)
			}
		}, "1m", "50ms", "image_pull_timeout", true},
		{"the stream breaks off", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"status":`) }, "1m", "1m", "broke off", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := newFakeEngine(t)
			e.handle("POST /images/create", test.pull)
			d := newTestDriver(t, e.host, map[string]any{"pull_activity_timeout": test.activityTimeout})
			_, err := acquire(t, t.Context(), d, map[string]any{"image": "app:1", "image_pull_timeout": test.timeout})
			if err == nil || !strings.Contains(err.Error(), test.want) || driver.IsRecoverable(err) != test.recoverable {
				t.Errorf("%v (recoverable: %v), want %q (recoverable: %v)", err, driver.IsRecoverable(err), test.want, test.recoverable)
			}
		})
	}
}

// The plugin's timeout is for tasks without their own.
func TestImagePullTimeout(t *testing.T) {
	e := newFakeEngine(t)
	e.handle("POST /images/create", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	for _, test := range []struct {
		name, plugin, task, want string
	}{
		{"of the plugin", "20ms", "", "pull app:1: not complete after image_pull_timeout, 20ms"},
		{"of the task, shorter", "5m", "30ms", "pull app:1: not complete after image_pull_timeout, 30ms"},
		{"of the task, longer", "1ms", "40ms", "pull app:1: not complete after image_pull_timeout, 40ms"},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := newTestDriver(t, e.host, map[string]any{"image_pull_timeout": test.plugin})
			task := map[string]any{"image": "app:1"}
			if test.task != "" {
				task["image_pull_timeout"] = test.task
			}
			_, err := d.Start(t.Context(), newTestStart(t, task))
			if err == nil || err.Error() != test.want || !driver.IsRecoverable(err) {
				t.Errorf("%v (recoverable: %v), want the recoverable error %q", err, driver.IsRecoverable(err), test.want)
			}
		})
	}
}

// Two starts share a pull, which ends when neither waits for it.
func TestConcurrentPullsAreOne(t *testing.T) {
	e := newFakeEngine(t)
	started, ended := make(chan struct{}), make(chan struct{})
	e.handle("POST /images/create", func(_ http.ResponseWriter, r *http.Request) {
		close(started)
		<-r.Context().Done()
		close(ended)
	})
	d := newTestDriver(t, e.host, nil)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if _, err := acquire(t, ctx, d, map[string]any{"image": "app:1", "force_pull": true}); !errors.Is(err, context.Canceled) {
				t.Errorf("a start that was cancelled: %v", err)
			}
		})
	}
	<-started
	for {
		d.images.mu.Lock()
		waiters := 0
		for _, p := range d.images.pullsByImageAndAuth {
			waiters += p.waiterCount
		}
		d.images.mu.Unlock()
		if waiters == 2 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	cancel()
	wg.Wait()
	<-ended
	if n := e.count("POST /images/create"); n != 1 {
		t.Errorf("%d pulls, want 1", n)
	}
}

func TestImageIsRemovedAfterLastContainer(t *testing.T) {
	e := newFakeEngine(t)
	removed := make(chan struct{}, 1)
	e.handle("DELETE /images/"+testImageID, func(w http.ResponseWriter, r *http.Request) {
		removed <- struct{}{}
		reply(http.StatusOK, []any{})(w, r)
	})
	d := newTestDriver(t, e.host, map[string]any{"gc": list(map[string]any{"image_delay": "1ms"})})
	d.images.markImageUsedByStart(testImageID, "a")
	d.images.markImageUsedByStart(testImageID, "b")
	d.images.releaseImageOfStart(testImageID, "a", hclog.NewNullLogger())
	d.images.releaseImageOfStart(testImageID, "a", hclog.NewNullLogger()) // a second destroy of the same start
	select {
	case <-removed:
		t.Error("the image was removed while a container uses it")
	case <-time.After(50 * time.Millisecond):
	}
	d.images.releaseImageOfStart(testImageID, "b", hclog.NewNullLogger())
	<-removed

	kept := newTestDriver(t, e.host, map[string]any{"gc": list(map[string]any{"image": false, "image_delay": "1ms"})})
	kept.images.markImageUsedByStart(testImageID, "a")
	kept.images.releaseImageOfStart(testImageID, "a", hclog.NewNullLogger())
	select {
	case <-removed:
		t.Error("the image was removed, and gc.image is false")
	case <-time.After(50 * time.Millisecond):
	}
}

func TestCredentials(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "config.json")
	auth := base64.StdEncoding.EncodeToString([]byte("user:of file"))
	if err := os.WriteFile(file, []byte(`{"auths":{"https://registry.test/v1/":{"auth":"`+auth+`"}},"credHelpers":{"helped.test":"test"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	helper := "#!/bin/sh\nread server\ncase $server in\n*known*|helped.test) echo '{\"Username\":\"user\",\"Secret\":\"of helper\"}';;\n*) echo credentials not found; exit 1;;\nesac\n"
	if err := os.WriteFile(filepath.Join(dir, "docker-credential-test"), []byte(helper), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for _, test := range []struct {
		image string
		task  *authConfig
		want  string // password; empty means no credentials
	}{
		{"registry.test/app:1", nil, "of file"},
		{"registry.test/app:1", &authConfig{Username: "me", Password: "of task"}, "of task"},
		{"helped.test/app:1", nil, "of helper"},
		{"known.test/app:1", nil, "of helper"},
		{"other.test/app:1", nil, ""},
	} {
		ref, err := parseImageRef(test.image)
		if err != nil {
			t.Fatal(err)
		}
		header, err := registryAuthHeader(t.Context(), ref.namedRef, test.task, registryAuthConfig{ConfigPath: file, CredentialHelperName: "test"})
		if err != nil {
			t.Errorf("%s: %v", test.image, err)
			continue
		}
		var got struct{ Password string }
		if header != "" {
			text, err := base64.URLEncoding.DecodeString(header)
			if err == nil {
				err = json.Unmarshal(text, &got)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if got.Password != test.want {
			t.Errorf("%s: password %q, want %q", test.image, got.Password, test.want)
		}
	}
}

// An archive outside of the task's local directory is not loaded.
func TestLoadStaysInLocalDirectory(t *testing.T) {
	e := newFakeEngine(t)
	e.handle("POST /images/load", reply(http.StatusOK, map[string]any{"stream": "Loaded"}))
	e.handle("GET /images/app:1/json", reply(http.StatusOK, map[string]any{"Id": testImageID}))
	d := newTestDriver(t, e.host, nil)
	start := newTestStart(t, map[string]any{"image": "app:1"})
	local := filepath.Join(start.TaskDir(), "local")
	if err := errors.Join(os.MkdirAll(local, 0o755), os.WriteFile(filepath.Join(local, "app.tar"), []byte("x"), 0o600),
		os.WriteFile(filepath.Join(start.TaskDir(), "above.tar"), nil, 0o600), os.Symlink("/etc/passwd", filepath.Join(local, "link.tar"))); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"app.tar": true, "../above.tar": false, "link.tar": false, "/etc/passwd": false} {
		_, err := d.images.acquireImageForStart(t.Context(), &taskConfig{imageConfig: imageConfig{Image: "app:1", Load: name}}, start)
		if (err == nil) != want {
			t.Errorf("load of %s: %v, want success: %v", name, err, want)
		}
	}
}
