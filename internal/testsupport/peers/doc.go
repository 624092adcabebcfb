// Package peers provides tests with programs of other projects: the stock Nomad agent, and plugins that were made without
// this repository. The programs are not part of the repository: they are in ../shared/peers, or in the folder that
// NOMAD_LITE_PEERS names.
package peers
