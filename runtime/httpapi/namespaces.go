package httpapi

// namespaceNames are the namespaces that were made, for the rules about jobs.
func (a *API) namespaceNames() []string {
	var names []string
	for _, n := range a.config.Store.Snapshot().Namespaces(nil, "") {
		names = append(names, n.Name)
	}
	return names
}
