// Package vdltest starts a VDL cluster for tests and makes it fail. It needs the `vdl` command, or
// VDL_COMMAND with another one, and no container.
//
//	cluster, err := vdltest.Start("--nodes", "3")
//	defer cluster.Close()
//	topic, err := cluster.Topic(1)
//	...
//	err = cluster.Do("kill", 1)
//
// The servers end when the test's process does, by whatever cause. docs/testing.md has all commands.
package vdltest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
)

// Answer is the answer to a command.
type Answer struct {
	OK        bool   `json:"ok"`
	Error     string `json:"error"`
	Bootstrap string `json:"bootstrap"`
	Topic     string `json:"topic"`
	Leader    int    `json:"leader"`
	Control   struct {
		URL   string `json:"url"`
		Token string `json:"token"`
	} `json:"control"`
}

// Cluster is a running cluster.
type Cluster struct {
	// Brokers has the addresses for Kafka clients.
	Brokers []string

	first   Answer
	mutex   sync.Mutex
	process *exec.Cmd
	input   io.WriteCloser
	output  *bufio.Reader
}

// Start starts a cluster; arguments are those of `vdl test-server`.
func Start(arguments ...string) (*Cluster, error) {
	command := strings.Fields(os.Getenv("VDL_COMMAND"))
	if len(command) == 0 {
		command = []string{"vdl"}
	}
	command = append(command, "test-server", "--json")
	process := exec.Command(command[0], append(command[1:], arguments...)...)
	process.Stderr = os.Stderr
	input, err := process.StdinPipe()
	if err != nil {
		return nil, err
	}
	output, err := process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := process.Start(); err != nil {
		return nil, err
	}
	cluster := &Cluster{process: process, input: input, output: bufio.NewReader(output)}
	first, err := cluster.answer()
	if err != nil {
		return nil, errors.Join(err, cluster.Close())
	}
	cluster.first = first
	cluster.Brokers = strings.Split(first.Bootstrap, ",")
	return cluster, nil
}

// Close ends the servers and removes their data.
func (c *Cluster) Close() error {
	c.input.Close()
	return c.process.Wait()
}

// Do runs a command, such as Do("partition", 1, 2).
func (c *Cluster) Do(command string, words ...any) error {
	_, err := c.Ask(command, words...)
	return err
}

// Ask runs a command and returns its answer.
func (c *Cluster) Ask(command string, words ...any) (Answer, error) {
	line := command
	for _, word := range words {
		line += fmt.Sprintf(" %v", word)
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if _, err := io.WriteString(c.input, line+"\n"); err != nil {
		return Answer{}, err
	}
	return c.answer()
}

// Post runs a command over HTTP, such as Post("/kill?server=2"). Any process of this user that knows
// the address and the token can do the same.
func (c *Cluster) Post(command string) (Answer, error) {
	var found Answer
	request, err := http.NewRequest(http.MethodPost, c.first.Control.URL+command, nil)
	if err != nil {
		return found, err
	}
	request.Header.Set("Authorization", "Bearer "+c.first.Control.Token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return found, err
	}
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(&found); err != nil {
		return found, err
	}
	if !found.OK {
		return found, errors.New(found.Error)
	}
	return found, nil
}

// Topic creates a topic with a name of its own.
func (c *Cluster) Topic(partitions int) (string, error) {
	answer, err := c.Ask("topic", partitions)
	return answer.Topic, err
}

// Leader returns the server that leads a partition, 0 if there is none.
func (c *Cluster) Leader(topic string, partition int) (int, error) {
	answer, err := c.Ask("leader", topic, partition)
	return answer.Leader, err
}

func (c *Cluster) answer() (Answer, error) {
	var found Answer
	line, err := c.output.ReadBytes('\n')
	if err != nil {
		return found, fmt.Errorf("vdl test-server ended: %w", err)
	}
	if err := json.Unmarshal(line, &found); err != nil {
		return found, err
	}
	if !found.OK {
		return found, errors.New(found.Error)
	}
	return found, nil
}
