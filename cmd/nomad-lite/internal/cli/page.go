package cli

import (
	"context"
	"net/url"
)

type uiFlagPageKey struct{}

// WithPageForUIFlag returns a context in which SetPageForUIFlag stores the path of a web page in pathDestination. A
// command with the flag -ui opens this page after it has run.
func WithPageForUIFlag(ctx context.Context, pathDestination *string) context.Context {
	return context.WithValue(ctx, uiFlagPageKey{}, pathDestination)
}

// SetPageForUIFlag sets the web page that shows the object of the command that runs with ctx. path is relative to /ui/,
// and its elements are escaped. Without WithPageForUIFlag, SetPageForUIFlag has no effect.
func SetPageForUIFlag(ctx context.Context, path string) {
	if stored, ok := ctx.Value(uiFlagPageKey{}).(*string); ok {
		*stored = path
	}
}

// JobWebPagePath returns the path of a job's web page, relative to /ui/, for SetPageForUIFlag.
func JobWebPagePath(id, namespace string) string {
	return "jobs/" + url.PathEscape(id) + "@" + url.PathEscape(namespace)
}

// VariableWebPagePath returns the path of a variable's web page, relative to /ui/, for SetPageForUIFlag.
func VariableWebPagePath(path, namespace string) string {
	return "variables/var/" + url.PathEscape(path) + "@" + url.PathEscape(namespace)
}
