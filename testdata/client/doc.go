// Package client tries a started agent with nothing but the public Go client:
// each method of it, so that one that is new there is one that is missing here.
//
// It is a module of its own: what passes here passes for everybody who has the
// client and not our packages. NOMAD_ADDR and NOMAD_TOKEN name the agent, whose
// jobs it makes, stops and collects: it must be nobody's.
package client
