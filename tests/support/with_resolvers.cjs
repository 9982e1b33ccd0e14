// For `node --require`: js-ipfs' dependencies call Promise.withResolvers, which Node has from version 22 on only.
Promise.withResolvers ??= function () {
  const made = {}
  made.promise = new this((resolve, reject) => Object.assign(made, { resolve, reject }))
  return made
}
