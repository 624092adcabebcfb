package docker

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/distribution/reference"
	"github.com/moby/moby/api/types/registry"

	"github.com/nomad-lite/nomad-lite/internal/opcount"
)

// dockerHubServer is the name of Docker Hub in files with credentials.
const dockerHubServer = "https://index.docker.io/v1/"

// registryAuthHeader returns the header with the credentials for the registry of an image, or "" if
// there are none. The credentials come from the task, else from the file of the plugin's
// configuration, else from the plugin's credential helper.
func registryAuthHeader(ctx context.Context, image reference.Named, taskAuth *authConfig, pluginAuth registryAuthConfig) (string, error) {
	server := reference.Domain(image)
	if server == "docker.io" {
		server = dockerHubServer
	}
	var auth *registry.AuthConfig
	var err error
	switch {
	case taskAuth != nil && (taskAuth.Username != "" || taskAuth.Password != ""):
		auth = &registry.AuthConfig{Username: taskAuth.Username, Password: taskAuth.Password, ServerAddress: taskAuth.ServerAddr}
	case pluginAuth.ConfigPath != "":
		if auth, err = readAuthFromFile(ctx, pluginAuth.ConfigPath, server); err != nil {
			return "", fmt.Errorf("auth.config: %w", err)
		}
	}
	if auth == nil && pluginAuth.CredentialHelperName != "" {
		if auth, err = runCredentialHelper(ctx, pluginAuth.CredentialHelperName, server); err != nil {
			return "", fmt.Errorf("auth.helper: %w", err)
		}
	}
	if auth == nil {
		return "", nil
	}
	if auth.ServerAddress == "" {
		auth.ServerAddress = server
	}
	header, err := json.Marshal(auth)
	return base64.URLEncoding.EncodeToString(header), err
}

// readAuthFromFile returns the credentials for a server from a file in the format of
// ~/.docker/config.json, or nil if the file has none.
func readAuthFromFile(ctx context.Context, path, server string) (*registry.AuthConfig, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var file struct {
		Auths map[string]struct {
			Auth          string `json:"auth"`
			Username      string `json:"username"`
			Password      string `json:"password"`
			IdentityToken string `json:"identitytoken"`
		} `json:"auths"`
		CredHelpers map[string]string `json:"credHelpers"`
		CredsStore  string            `json:"credsStore"`
	}
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("%s is not a configuration of Docker's command line", path) // without the cause, which could quote a secret
	}
	host := hostOfServerURL(server)
	for name, helper := range file.CredHelpers {
		if hostOfServerURL(name) == host {
			return runCredentialHelper(ctx, helper, server)
		}
	}
	for name, entry := range file.Auths {
		if hostOfServerURL(name) != host {
			continue
		}
		auth := &registry.AuthConfig{Username: entry.Username, Password: entry.Password, IdentityToken: entry.IdentityToken}
		if entry.Auth != "" {
			plain, err := base64.StdEncoding.DecodeString(entry.Auth)
			user, password, ok := strings.Cut(string(plain), ":")
			if err != nil || !ok {
				return nil, fmt.Errorf("%s: auth of %s is not base64 of user:password", path, name)
			}
			auth.Username, auth.Password = user, strings.TrimRight(password, "\x00")
		}
		if auth.Username != "" || auth.IdentityToken != "" {
			return auth, nil
		}
	}
	if file.CredsStore != "" {
		return runCredentialHelper(ctx, file.CredsStore, server)
	}
	return nil, nil
}

// hostOfServerURL returns the host of a server's name, which can be a URL.
func hostOfServerURL(name string) string {
	name = strings.TrimPrefix(strings.TrimPrefix(name, "https://"), "http://")
	host, _, _ := strings.Cut(name, "/")
	return host
}

// runCredentialHelper runs docker-credential-NAME, and returns the credentials for the server, or nil if
// the helper has none.
func runCredentialHelper(ctx context.Context, name, server string) (*registry.AuthConfig, error) {
	program := "docker-credential-" + name
	opcount.Count(opcount.Fork)
	cmd := exec.CommandContext(ctx, program, "get")
	cmd.Stdin = strings.NewReader(server)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		const notFound = "credentials not found" // all helpers write this text to stdout or stderr if they have no credentials
		if strings.Contains(stdout.String()+stderr.String(), notFound) {
			return nil, nil
		}
		return nil, fmt.Errorf("%s get: %w: %s", program, err, bytes.TrimSpace(stderr.Bytes()))
	}
	var reply struct{ Username, Secret string }
	if err := json.Unmarshal(stdout.Bytes(), &reply); err != nil {
		return nil, errors.New(program + " get: the output is not JSON")
	}
	if reply.Username == "<token>" {
		return &registry.AuthConfig{IdentityToken: reply.Secret}, nil
	}
	return &registry.AuthConfig{Username: reply.Username, Password: reply.Secret}, nil
}
