// Fed to `node --input-type=module -` in a folder that has ipfs-unixfs-importer: prints the CID of each file named, with the
// parameters of the profile unixfs-v1-2025. Knows none of our code.
import { createReadStream } from 'node:fs'
import { importer } from 'ipfs-unixfs-importer'
import { fixedSize } from 'ipfs-unixfs-importer/chunker'
import { balanced } from 'ipfs-unixfs-importer/layout'

const nowhere = { put: async (cid) => cid }
const found = {}
for (const path of process.argv.slice(2)) {
  for await (const entry of importer([{ content: createReadStream(path) }], nowhere, {
    cidVersion: 1,
    rawLeaves: true,
    reduceSingleLeafToSelf: true,
    wrapWithDirectory: false,
    chunker: fixedSize({ chunkSize: 1048576 }),
    layout: balanced({ maxChildrenPerNode: 1024 })
  })) {
    found[path] = entry.cid.toString()
  }
}
console.log(JSON.stringify(found))
