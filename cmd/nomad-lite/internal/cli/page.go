package cli

import (
	"context"
	"net/url"
)

type pageKey struct{}

// WithPage returns a context for a command whose flag -ui opens a web page after the command. SetPage stores the path of
// the page in path, below /ui/.
func WithPage(ctx context.Context, path *string) context.Context {
	return context.WithValue(ctx, pageKey{}, path)
}

// SetPage names the web page about the object that the command of ctx shows or changes. path is below /ui/, and its parts
// are escaped. Without WithPage it has no effect.
func SetPage(ctx context.Context, path string) {
	if stored, ok := ctx.Value(pageKey{}).(*string); ok {
		*stored = path
	}
}

// JobPage returns the path of the page of a job for SetPage.
func JobPage(id, namespace string) string {
	return "jobs/" + url.PathEscape(id) + "@" + url.PathEscape(namespace)
}

// VariablePage returns the path of the page of a variable for SetPage.
func VariablePage(path, namespace string) string {
	return "variables/var/" + url.PathEscape(path) + "@" + url.PathEscape(namespace)
}
