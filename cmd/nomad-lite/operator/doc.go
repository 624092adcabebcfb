// Package operator has the commands below "nomad-lite operator" that send requests to an agent: raw requests to the API,
// debug bundles, metrics, the keyring and the configuration of the scheduler.
package operator
