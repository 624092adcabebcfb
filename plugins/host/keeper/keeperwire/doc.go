// Package keeperwire has the messages between the keeper and its clients, and the setup with which a client starts a keeper.
// Package keeper is the client, and package keeperserver the keeper itself.
package keeperwire
