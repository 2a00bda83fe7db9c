// The loop that one writes with the SDK for Go: a goroutine for each shard, no leases, no checkpoints.
//
// Asked line by line as protocol.py says. The handler keeps the data.
package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"log"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/kinesis"
	"github.com/aws/aws-sdk-go-v2/service/kinesis/types"
)

const (
	shardBytes  = 2
	readRecords = 10_000
	// Kinesis allows five reads a second of each shard.
	idle = 200 * time.Millisecond
)

type task struct {
	Stream  string   `json:"stream"`
	Shards  []string `json:"shards"`
	Records int64    `json:"records"`
}

type answer struct {
	CPU     float64           `json:"cpu_s"`
	Wall    float64           `json:"wall_s"`
	Records int               `json:"records"`
	Digests map[string]string `json:"digests"`
}

func main() {
	settings, err := config.LoadDefaultConfig(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	client := kinesis.NewFromConfig(settings)
	lines := bufio.NewScanner(os.Stdin)
	answers := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var asked task
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			log.Fatal(err)
		}
		cpu, began := cpuSeconds(), time.Now()
		seen := consume(client, asked)
		told := answer{CPU: cpuSeconds() - cpu, Wall: time.Since(began).Seconds()}
		told.Records, told.Digests = digests(seen)
		if err := answers.Encode(told); err != nil {
			log.Fatal(err)
		}
	}
}

// consume reads all shards until so many records were seen.
func consume(client *kinesis.Client, asked task) [][][]byte {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	seen := make([][][]byte, len(asked.Shards))
	left := atomic.Int64{}
	left.Store(asked.Records)
	ended := make(chan struct{})
	for index, shard := range asked.Shards {
		go func() {
			read(ctx, client, asked.Stream, shard, func(records []types.Record) {
				for _, record := range records {
					seen[index] = append(seen[index], record.Data)
				}
				if left.Add(-int64(len(records))) <= 0 {
					stop()
				}
			})
			ended <- struct{}{}
		}()
	}
	for range asked.Shards {
		<-ended
	}
	return seen
}

func read(ctx context.Context, client *kinesis.Client, stream, shard string, handle func([]types.Record)) {
	first, err := client.GetShardIterator(ctx, &kinesis.GetShardIteratorInput{
		StreamName:        aws.String(stream),
		ShardId:           aws.String(shard),
		ShardIteratorType: types.ShardIteratorTypeTrimHorizon,
	})
	if err != nil {
		log.Fatal(err)
	}
	for iterator := first.ShardIterator; iterator != nil; {
		page, err := client.GetRecords(ctx, &kinesis.GetRecordsInput{
			ShardIterator: iterator,
			Limit:         aws.Int32(readRecords),
		})
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			log.Fatal(err)
		}
		iterator = page.NextShardIterator
		if len(page.Records) > 0 {
			handle(page.Records)
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(idle):
		}
	}
}

func cpuSeconds() float64 {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		log.Fatal(err)
	}
	return float64(used.Utime.Nano()+used.Stime.Nano()) / 1e9
}

// digests tells how many records there were, and of each shard a digest of their data in order.
func digests(seen [][][]byte) (int, map[string]string) {
	count, found := 0, map[string]string{}
	for _, shard := range seen {
		digest := sha256.New()
		for index, data := range shard {
			if index > 0 {
				digest.Write([]byte("|"))
			}
			digest.Write(data)
		}
		count += len(shard)
		if len(shard) > 0 {
			found[string(shard[0][:shardBytes])] = hex.EncodeToString(digest.Sum(nil))
		}
	}
	return count, found
}
