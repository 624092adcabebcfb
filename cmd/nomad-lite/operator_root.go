package main

import (
	"errors"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

const keyringHelp = `Manage the keys with which the items of variables are encrypted in the state file.

The keys are in the file keyring.json of the agent's data directory. Without them the
items in a copy of the state file cannot be read: back up both, apart from each other.`

const keyringRotateHelp = `Make a new key, with which all variables are encrypted that are written from now on.

The former keys stay in the key file, because older variables need them. With -full
all variables are encrypted again with the new key; then 'nomad-lite operator root
keyring remove' can remove the former keys.`

const keyringRemoveHelp = `Remove a key that is not used any more.

The active key cannot be removed. A key that something is encrypted with is removed
with -force only: all that the agent can read is encrypted with the active key before.
A backup of the state file that needs the key cannot be read without it.`

func newOperatorRootCommand(s *streams) *cobra.Command {
	keyring := group("keyring", "Manage the keys of variables",
		newKeyringListCommand(s), newKeyringRotateCommand(s), newKeyringRemoveCommand(s))
	keyring.Long = keyringHelp
	return group("root", "Manage the keys of variables", keyring)
}

// showKeys prints keys in Nomad's format.
func showKeys(s *streams, verbose bool, keys ...*api.RootKeyMeta) error {
	p := s.page()
	t := newTable("Key", "State", "Create Time", "Publish Time")
	for _, k := range keys {
		published := "<none>"
		if k.PublishTime > 0 {
			published = date(k.PublishTime)
		}
		t.row(shortID(k.KeyID, verbose), string(k.State), date(k.CreateTime), published)
	}
	p.tableOr(t, "No keys found")
	return s.show(p)
}

func newKeyringListCommand(s *streams) *cobra.Command {
	var client clientFlags
	var verbose bool
	cmd := &cobra.Command{
		Use:               "list [flags]",
		Short:             "List the keys of variables",
		Args:              argCount(0, 0, "no arguments"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := client.client()
			if err != nil {
				return err
			}
			keys, _, err := c.Keyring().List(query(cmd.Context(), ""))
			if err != nil {
				return failed("list keys", err)
			}
			return showKeys(s, verbose, keys...)
		},
	}
	client.register(cmd)
	cmd.Flags().BoolVar(&verbose, "verbose", false, "show whole ids")
	return cmd
}

func newKeyringRotateCommand(s *streams) *cobra.Command {
	var client clientFlags
	var o api.KeyringRotateOptions
	var verbose, now bool
	var prepublish time.Duration
	cmd := &cobra.Command{
		Use:               "rotate [flags]",
		Short:             "Make a new key for variables",
		Long:              keyringRotateHelp,
		Args:              argCount(0, 0, "no arguments"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if prepublish != 0 {
				return usageError(cmd, errors.New("-prepublish has no meaning here: nothing is signed with the keys; a new key is used at once"))
			}
			c, err := client.client()
			if err != nil {
				return err
			}
			key, _, err := c.Keyring().Rotate(&o, write(cmd.Context(), ""))
			if err != nil {
				return failed("rotate keys", err)
			}
			return showKeys(s, verbose, key)
		},
	}
	client.register(cmd)
	cmd.Flags().BoolVar(&o.Full, "full", false, "encrypt all variables again with the new key")
	cmd.Flags().BoolVar(&now, "now", false, "use the new key at once, which is done in any case")
	cmd.Flags().DurationVar(&prepublish, "prepublish", 0, "refused: `duration` before the key is used")
	cmd.Flags().BoolVar(&verbose, "verbose", false, "show the whole id")
	return cmd
}

func newKeyringRemoveCommand(s *streams) *cobra.Command {
	var client clientFlags
	var force bool
	cmd := &cobra.Command{
		Use:               "remove [flags] KEY",
		Short:             "Remove a key of variables",
		Long:              keyringRemoveHelp,
		Args:              argCount(1, 1, "the whole id of a key; 'nomad-lite operator root keyring list -verbose' lists them"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := client.client()
			if err != nil {
				return err
			}
			if _, err := c.Keyring().Delete(&api.KeyringDeleteOptions{KeyID: args[0], Force: force}, write(cmd.Context(), "")); err != nil {
				return failed("remove key", err)
			}
			p := s.page()
			p.line("Removed key %s", args[0])
			return s.show(p)
		},
	}
	client.register(cmd)
	cmd.Flags().BoolVar(&force, "force", false, "remove the key even if something is encrypted with it")
	return cmd
}
