// Package operator has the commands below "nomad-lite operator": raw requests to the API, debug
// bundles, metrics, the keyring and the state file.
package operator
