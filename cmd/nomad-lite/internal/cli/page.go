package cli

import (
	"context"
	"net/url"
)

type webPagePathKey struct{}

// WithWebPagePath returns a context in which SetWebPagePath stores the path of a web page in path. A command with the flag -ui opens
// this page after it has run.
func WithWebPagePath(ctx context.Context, path *string) context.Context {
	return context.WithValue(ctx, webPagePathKey{}, path)
}

// SetWebPagePath sets the web page that shows the object of the command that runs with ctx. path is relative to /ui/, and its
// elements are escaped. Without WithWebPagePath, SetWebPagePath has no effect.
func SetWebPagePath(ctx context.Context, path string) {
	if stored, ok := ctx.Value(webPagePathKey{}).(*string); ok {
		*stored = path
	}
}

// JobWebPagePath returns the path of a job's web page, relative to /ui/, for SetWebPagePath.
func JobWebPagePath(id, namespace string) string {
	return "jobs/" + url.PathEscape(id) + "@" + url.PathEscape(namespace)
}

// VariableWebPagePath returns the path of a variable's web page, relative to /ui/, for SetWebPagePath.
func VariableWebPagePath(path, namespace string) string {
	return "variables/var/" + url.PathEscape(path) + "@" + url.PathEscape(namespace)
}
